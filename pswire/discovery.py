"""Where the servers of a job are, when they are not named by their addresses: in a file that a launcher writes.

Each look is made once, here; `pswire.shard_addresses` repeats it. Standard library only.
"""

import os
from collections.abc import Sequence

from pswire.addresses import check_address
from pswire.errors import ConfigurationError, Unavailable

#: Bytes of a file of addresses, at most.
MAX_FILE = 1 << 20

_FILE = "file:"


def parse_servers(text: str) -> tuple[str, ...]:
    """The servers in `host:port,host:port,...` or in `file:/path`, which then is the only one.

    The path of a file is made absolute. Raises `ConfigurationError`, also for none: a worker must not train alone.
    """
    if is_name(text.strip()):
        return (_check_name(text.strip()),)
    servers = [part for part in text.split(",") if part.strip()]
    if not servers:
        raise ConfigurationError(
            f"no server in {text!r}: use host:port for each shard, separated by commas, or file:/path"
        )
    return check_servers(servers)


def check_servers(servers: Sequence[str]) -> tuple[str, ...]:
    """Addresses in the order of the shards, or one name alone, as `parse_servers` returns them.

    Raises `ConfigurationError`, also for none, and for an address that is there twice.
    """
    if not servers:
        raise ConfigurationError("no server: give the address of each shard, or a name that stands for all")
    if len(servers) == 1 and is_name(servers[0].strip()):
        return (_check_name(servers[0].strip()),)
    checked = tuple(map(check_address, servers))
    if len(set(checked)) < len(checked):
        raise ConfigurationError(f"a server is listed twice in {','.join(checked)}: name each shard once")
    return checked


def is_name(server: str) -> bool:
    """Whether it stands for all servers of a job, and is not the address of one."""
    return server.startswith(_FILE)


def look_up(name: str) -> tuple[str, ...]:
    """The addresses that a name stands for now, in the order of the shards.

    Raises `Unavailable` if there are none yet, and `ConfigurationError` for what is no list of addresses.
    """
    return _read(name.removeprefix(_FILE))


def _check_name(name: str) -> str:
    path = name.removeprefix(_FILE)
    if not path or not path.isprintable() or (path.startswith("//") and not path.startswith("///")):
        raise ConfigurationError(f"{name!r}: needs file: and the path of a file, such as file:/run/job/servers")
    return _FILE + os.path.abspath(path)


def _read(path: str) -> tuple[str, ...]:
    """The addresses in a file, one a line; blank lines, and what follows a #, are ignored."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE + 1)
    except (PermissionError, IsADirectoryError) as error:
        raise ConfigurationError(f"{path}, the file of the servers' addresses: {error.strerror}") from error
    except OSError as error:  # not there yet, or for a moment
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
