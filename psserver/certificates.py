"""Certificates of a cluster: a private CA, and under it a certificate for its servers and one for its clients.

The only module that needs the package `cryptography` (extra `certs`).
"""

import datetime
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from pswire.errors import ConfigurationError
from pswire.security.private_files import make_private_folder, read_file, read_secret, write_private_file
from pswire.system.extras import missing_package

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError:
    raise missing_package("certificates need", "certs") from None

#: Days for which a CA is valid; its certificates are valid for as long as they are asked to be, and no longer than it.
CA_DAYS = 3650

#: Names and addresses that each certificate of servers has.
ALWAYS = ("localhost", "127.0.0.1", "::1")

#: Clocks of other machines may be behind by this.
_SKEW = datetime.timedelta(minutes=5)
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_FILES = tuple(f"{name}.{kind}" for name in ("ca", "server", "client") for kind in ("crt", "key"))

_Key = ec.EllipticCurvePrivateKey


def check_hosts(hosts: Sequence[str]) -> tuple[str, ...]:
    """The hosts and `ALWAYS`, each once. Raises `ConfigurationError` for what is no host name or IP address."""
    checked = tuple(dict.fromkeys([*[host.strip().strip("[]") for host in hosts], *ALWAYS]))
    for host in checked:
        if not _HOST.fullmatch(host) and _address(host) is None:
            raise ConfigurationError(f"{host!r} is no host name or IP address: use --hosts ps-0,ps-1,10.0.0.5")
    return checked


def make_certificates(
    folder: Path, hosts: Sequence[str], days: int, *, force: bool = False, now: datetime.datetime | None = None
) -> None:
    """A new CA in `folder`, which is made if it is not there, and certificates for servers at `hosts` and for clients.

    Keys have mode 0600. Certificates are valid for `days` from `now` (UTC). Raises `ConfigurationError`, before a file
    is changed, if there are such files already and not `force`.
    """
    names = check_hosts(hosts)
    there = [name for name in _FILES if (folder / name).exists()]
    if there and not force:
        raise ConfigurationError(
            f"{folder} has {', '.join(there)} already: use --renew for a new certificate of the same CA, or --force "
            "for a new CA, whose certificates no running worker or server knows"
        )
    try:
        make_private_folder(folder)
    except OSError as error:
        raise ConfigurationError(f"the folder {folder} cannot be made: {error.strerror}") from error
    begin = now or datetime.datetime.now(datetime.UTC)
    ca_key = _new_key(folder / "ca.key")
    ca = _ca_certificate(ca_key, begin)
    _write(folder / "ca.crt", ca)
    _write(folder / "server.crt", _server(_new_key(folder / "server.key"), names, ca, ca_key, begin, days))
    _write(folder / "client.crt", _client(_new_key(folder / "client.key"), ca, ca_key, begin, days))


def renew_certificates(
    folder: Path, hosts: Sequence[str], days: int, *, now: datetime.datetime | None = None
) -> tuple[str, ...]:
    """New certificates of servers and clients under the CA in `folder`, with the existing keys.

    Returns the hosts: the given ones, or else the previous ones. Running servers use them from the next connection
    on. Raises `ConfigurationError` if a file is missing or is none of these.
    """
    begin = now or datetime.datetime.now(datetime.UTC)
    ca, ca_key = _certificate(folder / "ca.crt"), _key(folder / "ca.key")
    names = check_hosts(hosts) if hosts else _hosts(_certificate(folder / "server.crt"))
    if begin >= ca.not_valid_after_utc:
        raise ConfigurationError(f"the CA in {folder} has expired: make a new one with --force")
    server = _server(_key(folder / "server.key"), names, ca, ca_key, begin, days)
    client = _client(_key(folder / "client.key"), ca, ca_key, begin, days)
    _write(folder / "server.crt", server)
    _write(folder / "client.crt", client)
    return names


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple([str(name.value) for name in names])


def _new_key(path: Path) -> _Key:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private_file(path, pem)
    return key


def _key(path: Path) -> _Key:
    try:
        key = serialization.load_pem_private_key(read_secret(path, "the private key"), None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{path} is no private key that psserver certs has written: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(f"{path} is no private key that psserver certs has written: it is of another kind")
    return key


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_file(path, "the certificate"))
    except ValueError as error:
        raise ConfigurationError(f"{path} is no certificate: {error}") from error


def _write(path: Path, certificate: x509.Certificate) -> None:
    write_private_file(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _ca_certificate(key: _Key, begin: datetime.datetime) -> x509.Certificate:
    name = _name("paramserver CA")
    builder = _builder(name, name, key, begin, begin + datetime.timedelta(days=CA_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    other = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*other, "encipher_only", "decipher_only"), False)
    builder = builder.add_extension(
        x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True
    )
    return builder.sign(key, hashes.SHA256())


def _server(
    key: _Key, hosts: Sequence[str], ca: x509.Certificate, ca_key: _Key, begin: datetime.datetime, days: int
) -> x509.Certificate:
    """Also of use for a client, so that a server's own health check can show it."""
    names = [x509.DNSName(host) if _address(host) is None else x509.IPAddress(_address(host)) for host in hosts]  # type: ignore[arg-type]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    alternatives = x509.SubjectAlternativeName(names)
    return _signed("paramserver server", key, usages, [alternatives], ca, ca_key, begin, days)


def _client(key: _Key, ca: x509.Certificate, ca_key: _Key, begin: datetime.datetime, days: int) -> x509.Certificate:
    return _signed("paramserver client", key, [ExtendedKeyUsageOID.CLIENT_AUTH], [], ca, ca_key, begin, days)


def _signed(
    name: str,
    key: _Key,
    usages: list[x509.ObjectIdentifier],
    extensions: Sequence[x509.ExtensionType],
    ca: x509.Certificate,
    ca_key: _Key,
    begin: datetime.datetime,
    days: int,
) -> x509.Certificate:
    end = min(begin + datetime.timedelta(days=days), ca.not_valid_after_utc)
    builder = _builder(_name(name), ca.subject, key, begin, end)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    for extension in (x509.ExtendedKeyUsage(usages), authority, *extensions):
        builder = builder.add_extension(extension, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return builder.sign(ca_key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: _Key, begin: datetime.datetime, end: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
