"""Addresses of servers: their forms, the default, and those by which a server is reached. Standard library only."""

import ipaddress
import os
import re
import socket

from pswire.errors import ConfigurationError
from pswire.limits import MAX_PORT

#: Where `psserver serve` listens by default, and where the other commands look for it.
DEFAULT_ADDRESS = "127.0.0.1:7070"

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_PORT = re.compile(r"[0-9]{1,5}")
_MAX_SOCKET_PATH = 107  # bytes: sockaddr_un on Linux, without the terminating zero
_LOOPBACK_V4 = re.compile(r"127(\.[0-9]{1,3}){3}")
#: The addresses of all interfaces, and the loopback of the same family.
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def check_address(text: str) -> str:
    """The address without surrounding whitespace: `host:port`, `[v6]:port` or `unix:/path`.

    Port 0 is allowed: a server may listen on a port that the system chooses. Raises `ConfigurationError`.
    """
    address = text.strip()
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        absolute = path.startswith("/") and not path.startswith("//")  # after two slashes gRPC expects a host
        if absolute and path.isprintable() and len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
            return address
        raise ConfigurationError(
            f"{text!r}: needs unix: and an absolute path of at most {_MAX_SOCKET_PATH} bytes, such as unix:/run/ps.sock"
        )
    host, _, port = address.rpartition(":")
    if _is_host(host) and _PORT.fullmatch(port) and int(port) <= MAX_PORT:
        return address
    raise ConfigurationError(f"{text!r} is not an address: use host:port, [IPv6 address]:port or unix:/path")


def check_http_address(text: str) -> str:
    """The address of an HTTP server, `host:port` or `[v6]:port`. Raises `ConfigurationError`."""
    address = check_address(text)
    if address.startswith("unix:"):
        raise ConfigurationError(f"{text!r}: browsers need host:port, such as 127.0.0.1:8080")
    return address


def _is_host(host: str) -> bool:
    if not (host.startswith("[") and host.endswith("]")):
        return _HOST.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True


def parse_port(text: str) -> int | None:
    """A port, 0 for a free one; None for "off". Raises `ConfigurationError`."""
    if text.strip() == "off":
        return None
    if _PORT.fullmatch(text.strip()) and int(text) <= MAX_PORT:
        return int(text)
    raise ConfigurationError(f"{text!r}: write a port up to {MAX_PORT}, 0 for a free one, or off")


def shard_addresses(bind: str, shards: int) -> tuple[str, ...]:
    """The addresses on which the shards of one machine listen: ports that follow each other, or free ones for port 0.

    shard_addresses("0.0.0.0:7070", 2) == ("0.0.0.0:7070", "0.0.0.0:7071")

    A host without a port has port 0. Of several Unix sockets each has the shard's number at its end. Raises
    `ConfigurationError` for an invalid address, or a last port above `MAX_PORT`.
    """
    if bind.strip().startswith("unix:"):
        return tuple([check_address(f"{bind}.{shard}") for shard in range(shards)]) if shards > 1 else (bind,)
    address = f"{bind.strip()}:0" if _is_host(bind.strip()) else check_address(bind)
    host, _, port = address.rpartition(":")
    last = int(port) + shards - 1
    if last > MAX_PORT:
        raise ConfigurationError(f"{bind!r}: {shards} shards need ports up to {last}: use a lower one")
    return tuple([f"{host}:{int(port) + shard if int(port) else 0}" for shard in range(shards)])


def local_address(bind: str) -> str:
    """The address by which this machine reaches a server that listens on `bind`: loopback for all interfaces."""
    host, colon, port = bind.rpartition(":")
    return _LOOPBACK.get(host, host) + colon + port


def is_local(address: str) -> bool:
    """True if only this machine reaches the address: of the loopback interface, or a Unix socket."""
    host = address.rpartition(":")[0]
    return address.startswith("unix:") or host in ("localhost", "[::1]") or _LOOPBACK_V4.fullmatch(host) is not None


def remote_address(bind: str) -> str:
    """The address by which other machines reach a server that listens on `bind`: this host's name for all interfaces.

    Empty if they cannot: for loopback addresses and Unix sockets.
    """
    host, colon, port = bind.rpartition(":")
    if is_local(bind):
        return ""
    return (socket.gethostname() if host in _LOOPBACK else host) + colon + port
