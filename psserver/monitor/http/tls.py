"""TLS of the HTTP server: each connection gets the certificate, key and CA of clients that the files have then."""

import ssl
from pathlib import Path

from psserver.tls_files import TlsFiles


class HttpCertificates:
    """The context of each new connection. With `ca`, clients may show a certificate, which it has to have signed.

    `warns`: of the end of the certificate, at the start and with new connections. Any thread may call. Raises
    `ConfigurationError` if the files cannot be used at the start.
    """

    def __init__(self, certificate: Path, key: Path, ca: Path | None = None, *, warns: bool = True) -> None:
        self._files, self._warns = TlsFiles(certificate, key, ca), warns
        self.context()

    def context(self) -> ssl.SSLContext:
        """The context of a new connection."""
        self._files.reread()
        if self._warns:
            self._files.warn_of_end()
        found = self._files.contents
        if found.ca is not None:
            found.context.verify_mode = ssl.CERT_OPTIONAL
        return found.context
