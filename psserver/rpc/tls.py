"""TLS of a server: each handshake gets the certificate, key and CA of clients that the files have then."""

import socket
import ssl
from pathlib import Path

import grpc

from psserver.tls_files import TlsFiles


class Certificates:
    """The files of a server's certificate. `credentials` has what gRPC needs; `changed` is called in gRPC's threads.

    Raises `ConfigurationError` if they cannot be used.
    """

    def __init__(self, certificate: Path, key: Path, ca: Path | None, *, ask_clients: bool) -> None:
        self._asks = ask_clients and ca is not None
        self._paths = certificate, key, ca if ask_clients else None
        self._files = TlsFiles(*self._paths)

    def of_sockets(self) -> "SocketCertificates":
        """The same for sockets, read again on its own."""
        return SocketCertificates(TlsFiles(*self._paths), asks=self._asks)

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


class SocketCertificates:
    """TLS 1.3 on the server's side of sockets; clients need a certificate if it `asks`."""

    def __init__(self, files: TlsFiles, *, asks: bool) -> None:
        self._files, self._asks = files, asks

    def wrap(self, connection: socket.socket) -> ssl.SSLSocket:
        """The socket with TLS, before its handshake, by the files as they are now."""
        self._files.reread()
        context = self._files.contents.context
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self._asks:
            context.verify_mode = ssl.CERT_REQUIRED
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
