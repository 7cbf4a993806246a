"""Names instead of the addresses of a job's servers: a file, a name in the DNS, or a service in the DNS.

Each look is made once, here; `pswire.network.shard_addresses` repeats it. Makes no connections to servers.
"""

import errno
import os
import socket
from collections.abc import Sequence

from pswire.addresses import DEFAULT_ADDRESS, check_address
from pswire.errors import ConfigurationError, Unavailable
from pswire.system.extras import install_command
from pswire.system.files import open_file

#: Bytes of a file of addresses, at most.
MAX_FILE = 1 << 20

_FILE, _DNS, _SRV = "file:", "dns:///", "dns+srv://"
#: What the names of SRV records begin with (RFC 2782).
_SERVICE = "_psserver._tcp."
_FORMS = "host:port for each shard, separated by commas, or file:/path, dns:///name:port or dns+srv://name"


def parse_servers(text: str) -> tuple[str, ...]:
    """The servers in `host:port,host:port,...`, or a name that stands for all, which then is the only one.

    parse_servers("dns:///ps") == ("dns:///ps:7070",)

    The path of a file is made absolute, a name without a port gets the default one, and that of a service the prefix of
    its records. Raises `ConfigurationError`, also for none: a worker must not train alone.
    """
    servers = [text] if is_name(text) else [part for part in text.split(",") if part.strip()]
    if not servers:
        raise ConfigurationError(f"no server in {text!r}: use {_FORMS}")
    return check_servers(servers)


def check_servers(servers: Sequence[str]) -> tuple[str, ...]:
    """Addresses in the order of the shards, or one name alone, as `parse_servers` returns them.

    Raises `ConfigurationError`, also for none, and for an address that is there twice.
    """
    if not servers:
        raise ConfigurationError(f"no server: use {_FORMS}")
    if len(servers) == 1 and is_name(servers[0]):
        return (_check_name(servers[0].strip()),)
    checked = tuple(map(check_address, servers))
    if len(set(checked)) < len(checked):
        raise ConfigurationError(f"a server is listed twice in {','.join(checked)}: name each shard once")
    return checked


def is_name(server: str) -> bool:
    """True if it stands for all servers of a job, and is not the address of one."""
    return server.strip().startswith((_FILE, "dns:", "dns+"))


def in_order(name: str) -> bool:
    """True if the addresses that a name stands for are in the order of the shards."""
    return name.startswith(_FILE)


def tls_name(name: str) -> str:
    """The host name that the servers' certificates must have; "": those in the addresses."""
    return name.removeprefix(_DNS).rpartition(":")[0].strip("[]") if name.startswith(_DNS) else ""


def look_up(name: str, timeout: float) -> tuple[str, ...]:
    """The addresses that a name stands for now, each once.

    Raises `Unavailable` if there are none yet, and `ConfigurationError` for anything but a list of addresses. DNS has
    `timeout` seconds where the resolver accepts a timeout; the system's resolver has its own limits.
    """
    if name.startswith(_FILE):
        return _read(name.removeprefix(_FILE))
    return _resolve(name) if name.startswith(_DNS) else _service(name, timeout)


def _check_name(name: str) -> str:
    """The name in full. Raises `ConfigurationError`."""
    if name.startswith(_FILE):
        path = name.removeprefix(_FILE)
        if not path or not path.isprintable() or (path.startswith("//") and not path.startswith("///")):
            raise ConfigurationError(f"{name!r}: needs file: and the path of a file, such as file:/run/job/servers")
        return _FILE + os.path.abspath(path)
    for scheme, example in (_DNS, "dns:///ps.example.org:7070"), (_SRV, "dns+srv://_psserver._tcp.example.org"):
        if name.startswith(scheme):
            return scheme + _check_host(name, scheme, example)
    raise ConfigurationError(f"{name!r} is neither an address nor a name: use {_FORMS}")


def _check_host(name: str, scheme: str, example: str) -> str:
    host = name.removeprefix(scheme)
    with_port = host if scheme == _DNS and host.rpartition("]")[2].count(":") else f"{host}:{_default_port()}"
    try:
        if with_port.startswith("unix:") or with_port.endswith(":0"):
            raise ConfigurationError("no name and port")
        check_address(with_port.removeprefix("_"))
    except ConfigurationError:
        raise ConfigurationError(f"{name!r}: needs the form {example}") from None
    if scheme == _DNS:
        return with_port
    return host if host.startswith("_") else _SERVICE + host


def _default_port() -> str:
    return DEFAULT_ADDRESS.rpartition(":")[2]


def _read(path: str) -> tuple[str, ...]:
    """The addresses in a file, one a line; blank lines, and what follows a #, are ignored."""
    try:
        with open_file(path) as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        if isinstance(error, PermissionError | IsADirectoryError) or error.errno == errno.EINVAL:
            raise ConfigurationError(f"{path}, the file of the servers' addresses: {error.strerror}") from error
        # not there yet, or for a moment
        raise Unavailable(
            f"{path}, the file of the servers' addresses, cannot be read: {error.strerror}; whatever starts the "
            "servers writes it, an address per line"
        ) from error
    if len(data) > MAX_FILE:
        raise ConfigurationError(f"{path} has more than {MAX_FILE:,} bytes: it is no file of addresses")
    addresses: list[str] = []
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if address := line.partition("#")[0].strip():
            addresses.append(_listed(address, addresses, f"{path}, line {number}"))
    if not addresses:
        raise Unavailable(f"{path} has no address yet; whatever starts the servers writes it, an address per line")
    return tuple(addresses)


def _listed(address: str, others: Sequence[str], where: str) -> str:
    try:
        check_address(address)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    if address.endswith(":0"):
        raise ConfigurationError(f"{where}: {address} has port 0: write the port that the server has printed")
    if address in others:
        raise ConfigurationError(f"{where}: {address} is there twice, and each shard has one of its own")
    return address


def _resolve(name: str) -> tuple[str, ...]:
    """The addresses of a host name, with its port."""
    host, _, port = name.removeprefix(_DNS).rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), socket.AF_UNSPEC, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # no answer, or no such name yet
        reason = getattr(error, "strerror", None) or str(error)
        raise Unavailable(
            f"{name} has no address: {reason}; is it the name of the servers, and are these started?"
        ) from error
    hosts = [str(address[0]) for _, _, _, _, address in found]
    return tuple(dict.fromkeys(f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts))


def _service(name: str, timeout: float) -> tuple[str, ...]:
    """The hosts and ports in the SRV records of a service, those of the first priority first."""
    try:
        import dns.exception
        import dns.resolver
    except ImportError as error:
        raise ConfigurationError(f"{name} needs dnspython: {install_command('dns')}") from error
    try:
        found = dns.resolver.resolve(name.removeprefix(_SRV), "SRV", lifetime=timeout, search=True)
    except dns.exception.DNSException as error:
        raise Unavailable(
            f"{name} has no SRV records: {error}; is it the service of the servers, and are these started?"
        ) from error
    records = sorted(found, key=lambda one: (one.priority, str(one.target), one.port))
    return tuple(dict.fromkeys(check_address(f"{one.target.to_text(True)}:{one.port}") for one in records))
