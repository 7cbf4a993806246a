"""TLS of a server: its certificate and key, and the CA of its clients, read again when the files change.

A changed pair that does not fit together is logged and not used: connections go on with the one before.
"""

import logging
import ssl
from pathlib import Path

import grpc

from pswire.errors import ConfigurationError
from pswire.security.private_files import read_file, read_secret, stamp

log = logging.getLogger(__name__)


class Certificates:
    """The files of a server's certificate. `credentials` has what gRPC needs; `changed` is called in gRPC's threads.

    Raises `ConfigurationError` if they cannot be used.
    """

    def __init__(self, certificate: Path, key: Path, ca: Path | None, *, ask_clients: bool) -> None:
        self._certificate, self._key = certificate, key
        self._ca = ca if ask_clients else None
        self._stamps = self._look()
        self._first = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for `add_secure_port`; clients need a certificate if there is a CA to check it by."""
        return grpc.dynamic_ssl_server_credentials(
            self._first, self.changed, require_client_authentication=self._ca is not None
        )

    def changed(self) -> object:
        """The new certificates, if the files have changed since the last handshake; else None. Does not raise."""
        now = self._look()
        if now == self._stamps:
            return None
        self._stamps = now
        try:
            read = self._read()
        except ConfigurationError as error:
            log.warning("%s; new connections get the certificate of before", error)
            return None
        log.info("read the certificate %s again", self._certificate)
        return read

    def _look(self) -> tuple[tuple[int, ...], ...]:
        return tuple([stamp(path) for path in (self._certificate, self._key, self._ca) if path is not None])

    def _read(self) -> object:
        certificate = read_file(self._certificate, "the certificate")
        key = read_secret(self._key, "the private key")
        ca = None if self._ca is None else read_file(self._ca, "the CA file")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._certificate, self._key, password="")
            if ca is not None:
                context.load_verify_locations(cadata=ca.decode("ascii"))
        except (ssl.SSLError, ValueError, OSError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise ConfigurationError(
                f"the certificate {self._certificate}, its key {self._key} and the CA {self._ca} cannot be used "
                f"({reason}): they have to be PEM files, and the key that of the certificate and without a password"
            ) from error
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=ca)
