"""Token files and certificates for tests, as the commands make them."""

from pathlib import Path

from psserver.certificates import make_certificates
from pswire.security.credentials import Credentials
from pswire.security.token_files import Role, add_token


def token_credentials(folder: Path, name: str = "job") -> tuple[Path, dict[Role, Credentials]]:
    """A new token file of servers, and credentials with a token of each role, in files of the folder."""
    servers, files = folder / f"{name}-tokens", {}
    for role in Role:
        files[role] = folder / f"{name}-{role}.token"
        files[role].touch(mode=0o600)
        files[role].write_text(add_token(servers, role, role) + "\n")
    return servers, {role: Credentials(token_file=str(path)) for role, path in files.items()}


class Certificates:
    """The certificates in a folder of `psserver certs`: options of servers, and credentials of clients."""

    def __init__(self, folder: Path, hosts: tuple[str, ...] = (), **options: object) -> None:
        self.folder = folder
        make_certificates(folder, hosts, 30, **options)

    @property
    def server(self) -> dict[str, Path]:
        """Fields of `ServerConfig` for TLS."""
        return {"tls_cert": self.folder / "server.crt", "tls_key": self.folder / "server.key"}

    @property
    def mutual(self) -> dict[str, object]:
        """Fields of `ServerConfig` for TLS with certificates of clients."""
        return {**self.server, "tls_ca": self.folder / "ca.crt", "client_certificates": "required"}

    def client(self, *, certificate: bool = False, token_file: str = "", tls_name: str = "") -> Credentials:
        """Credentials that check servers by this CA, with a certificate of their own or without."""
        own = [str(self.folder / name) for name in ("client.crt", "client.key")] if certificate else ["", ""]
        return Credentials(str(self.folder / "ca.crt"), *own, token_file, tls_name)
