"""TLS of a gRPC server: each handshake gets the certificate, key and CA of clients that the files have then."""

from pathlib import Path

import grpc

from psserver.tls_files import TlsFiles


class Certificates:
    """The files of a server's certificate. `credentials` has what gRPC needs; `changed` is called in gRPC's threads.

    Raises `ConfigurationError` if they cannot be used.
    """

    def __init__(self, certificate: Path, key: Path, ca: Path | None, *, ask_clients: bool) -> None:
        self._asks = ask_clients and ca is not None
        self._files = TlsFiles(certificate, key, ca if ask_clients else None)

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for `add_secure_port`; clients need a certificate if there is a CA to check it by."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self.changed, require_client_authentication=self._asks
        )

    def changed(self) -> object:
        """The new certificates, if the files have changed since the last handshake; else None. Does not raise."""
        return self._configuration() if self._files.reread() else None

    def warn_of_end(self) -> None:
        """As `TlsFiles.warn_of_end`, at the time of now."""
        self._files.warn_of_end()

    def _configuration(self) -> object:
        found = self._files.contents
        return grpc.ssl_server_certificate_configuration([(found.key, found.certificate)], root_certificates=found.ca)
