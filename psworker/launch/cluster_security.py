"""Security of a local cluster: what its servers ask for, and what its workers and this process show to them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from pswire.addresses import is_local
from pswire.errors import ConfigurationError
from pswire.security.credentials import Credentials
from pswire.security.exposure import check_exposure
from pswire.security.local_tokens import LocalTokens, local_tokens
from pswire.security.private_files import read_secret
from pswire.security.token_files import Role


@dataclass(frozen=True)
class ClusterSecurity:
    """Options of the servers, as `psserver serve` has them; files are "" if they are not given.

    The servers want tokens, which are made for the time of the cluster, unless it is `insecure`; those in `token_file`
    are valid too. `tls_name` is the host name in their certificate, "" for each address's host. Raises
    `ConfigurationError` for files that do not belong together.
    """

    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    client_certificates: str = "off"
    token_file: str = ""
    insecure: bool = False
    tls_name: str = ""

    def __post_init__(self) -> None:
        """Check which files are given."""
        if self.tls_cert and not self.tls_ca:
            raise ConfigurationError("--tls-cert needs --tls-ca: workers of this machine check the servers by it")
        if self.client_certificates == "required" and not self.tls_cert:
            raise ConfigurationError("--client-certificates required needs --tls-cert, --tls-key and --tls-ca")
        Credentials(self.tls_ca, self.tls_cert, self.tls_key)

    def check(self, binds: Sequence[str]) -> None:
        """Raise `ConfigurationError` if other machines would reach the servers without TLS or tokens."""
        knows_callers = not self.insecure or bool(self.token_file) or self.client_certificates == "required"
        for bind in binds:
            check_exposure(bind, tls=bool(self.tls_cert), knows_callers=knows_callers, insecure=self.insecure)

    def tokens(self) -> AbstractContextManager[LocalTokens | None]:
        """New tokens for the time of the cluster; None if its servers want none. Raises `ConfigurationError`."""
        if self.token_file:
            return local_tokens(read_secret(self.token_file, "the token file"))
        return nullcontext() if self.insecure else local_tokens()

    def server_options(self, tokens: LocalTokens | None) -> dict[str, str]:
        """Options of `psserver serve`, by name."""
        return {
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
            "tls_ca": self.tls_ca,
            "client_certificates": self.client_certificates,
            "token_file": "" if tokens is None else str(tokens.servers),
            "insecure": str(int(self.insecure)),
        }

    def page_options(self, address: str) -> list[str]:
        """Options of `psserver monitor`: TLS with the servers' certificate for other machines."""
        if is_local(address):
            return []
        certificate = ["--http-cert", self.tls_cert, "--http-key", self.tls_key] if self.tls_cert else []
        return [*certificate, *["--insecure"] * self.insecure]

    def credentials(self, tokens: LocalTokens | None, role: Role) -> Credentials:
        """Credentials for the servers; where they ask for certificates of clients, the servers' own is shown."""
        own = (self.tls_cert, self.tls_key) if self.client_certificates == "required" else ("", "")
        token_file = "" if tokens is None else str(tokens.token(role))
        return Credentials(self.tls_ca if self.tls_cert else "", *own, token_file, self.tls_name)
