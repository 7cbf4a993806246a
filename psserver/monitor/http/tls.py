"""TLS of the HTTP server: a certificate and its key, and the CA of clients, read again when the files change."""

import logging
import ssl
import threading
from pathlib import Path

from pswire.errors import ConfigurationError
from pswire.security.private_files import read_secret, stamp

log = logging.getLogger(__name__)


class HttpCertificates:
    """The context of each new connection. Changed files that cannot be used are logged, and not used.

    With `ca`, clients may show a certificate, which it has to have signed.
    Raises `ConfigurationError` if the files cannot be used at the start.
    """

    def __init__(self, certificate: Path, key: Path, ca: Path | None = None) -> None:
        self._certificate, self._key, self._ca = certificate, key, ca
        self._lock = threading.Lock()  # guards both
        self._stamps = self._look()
        self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """The context; any thread may call."""
        with self._lock:
            if (now := self._look()) != self._stamps:
                self._stamps = now
                try:
                    self._context = self._read()
                except ConfigurationError as error:
                    log.warning("%s; new connections get the certificate of before", error)
            return self._context

    def _look(self) -> tuple[tuple[int, ...], ...]:
        return tuple([stamp(path) for path in (self._certificate, self._key, self._ca) if path is not None])

    def _read(self) -> ssl.SSLContext:
        read_secret(self._key, "the private key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION  # handshakes without end on one connection
        try:
            context.load_cert_chain(self._certificate, self._key, password="")
            if self._ca is not None:
                context.load_verify_locations(self._ca)
                context.verify_mode = ssl.CERT_OPTIONAL
        except (ssl.SSLError, ValueError, OSError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise ConfigurationError(
                f"the certificate {self._certificate}, its key {self._key} and the CA {self._ca} cannot be used "
                f"for HTTP ({reason})"
            ) from error
        return context
