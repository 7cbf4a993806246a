"""Credentials by which a client identifies itself and checks servers: files of a CA, its own certificate and a token.

Standard library only; `pswire.network.channel` makes channels from them.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, fields

from pswire.addresses import is_local
from pswire.errors import ConfigurationError
from pswire.security.local_tokens import local_token
from pswire.security.private_files import read_file, read_secret
from pswire.security.token_files import check_token


@dataclass(frozen=True, slots=True)
class Credentials:
    """The files of a client; "" for a file that it does not have.

    Attributes:
        tls_ca: certificates of the authorities that may have signed the server's; if it is given, TLS is used.
        tls_cert: the client's own certificate, with its chain, for servers that ask for one.
        tls_key: its private key.
        token_file: a file with one token alone. Without one, the token of a `psworker local` or `psworker ray` of this
            user is taken for its own servers.
        tls_name: the host name that the certificates of all servers must have, instead of the hosts in their addresses.

    Raises `ConfigurationError` for a certificate without its key, or without a CA.
    """

    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    tls_name: str = ""

    def __post_init__(self) -> None:
        """Check which are given; the files are read when a channel is opened."""
        for field in fields(self):
            object.__setattr__(self, field.name, os.fspath(getattr(self, field.name)))
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("--tls-cert", "--tls-key") if self.tls_cert else ("--tls-key", "--tls-cert")
            raise ConfigurationError(f"{given} needs {missing}: a certificate and its private key belong together")
        if self.tls_cert and not self.tls_ca:
            raise ConfigurationError("--tls-cert needs --tls-ca: TLS is used if there is a CA to check the server by")

    @property
    def tls(self) -> bool:
        """True if connections use TLS."""
        return bool(self.tls_ca)

    def certificates(self) -> tuple[bytes, bytes | None, bytes | None]:
        """CA, private key and certificate, in PEM. Raises `ConfigurationError`."""
        ca = read_file(self.tls_ca, "the CA file")
        if not self.tls_cert:
            return ca, None, None
        return ca, read_secret(self.tls_key, "the private key"), read_file(self.tls_cert, "the certificate")

    def context(self) -> ssl.SSLContext:
        """TLS 1.3 of these files for sockets. Raises `ConfigurationError`."""
        ca, _, certificate = self.certificates()
        try:
            context = ssl.create_default_context(cadata=ca.decode("ascii", "replace"))
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            if certificate is not None:
                context.load_cert_chain(self.tls_cert, self.tls_key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"the CA {self.tls_ca} or the certificate {self.tls_cert} cannot be used: {error}"
            ) from None
        return context

    def token(self, address: str) -> str:
        """The token for the server at `address`; "" without one.

        Raises `ConfigurationError` if the file cannot be used, or the token would travel unencrypted to another
        machine.
        """
        if not self.token_file:
            if token := local_token(address):
                self.check_encrypted(address, "the token of this user's cluster")
            return token
        self.check_encrypted(address, f"the token in {self.token_file}")
        return check_token(read_secret(self.token_file, "the token file").decode(errors="replace"), self.token_file)

    def check_encrypted(self, address: str, what: str) -> None:
        """Raise `ConfigurationError` if `what`, a token, would travel unencrypted to another machine."""
        if not self.tls and not is_local(address):
            raise ConfigurationError(
                f"{what} would be sent to {address} without encryption, and anyone on the way could take it: give the "
                "CA of a server that uses TLS (--tls-ca), or leave the token out"
            )


#: Plain connections without a token.
NO_CREDENTIALS = Credentials()
