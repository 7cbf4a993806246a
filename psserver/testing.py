"""Servers in this process, for tests of programs and for notebooks: real shards behind gRPC, on loopback addresses.

A server is a thread with an event loop. One that is killed needs a process of its own: `psserver serve`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from psserver.config import ServerConfig, parse_size, parse_timeout
from psserver.rpc.server import ServerThread
from pswire.addresses import parse_port
from pswire.errors import ConfigurationError
from pswire.specs.checkpoints import JournalSync, parse_checkpoint_every
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.gradient_norm import parse_gradient_norm

__all__ = ["Servers", "serve"]


class Servers:
    """The servers of a job, one a shard. Made by `serve`, whose thread alone may use it.

    Attributes:
        addresses: of all servers, in the order of their shards; `stop` and `start` keep them.
    """

    addresses: tuple[str, ...]

    def __init__(self, configs: Sequence[ServerConfig]) -> None:
        self._configs = list(configs)
        self._running: dict[int, ServerThread] = {}

    def start(self, shard: int) -> None:
        """Starts a shard's server, again at its address: with what its `checkpoint_dir` has.

        Without a `checkpoint_dir` it is empty, and earlier workers end with `WrongShard`.

        Raises:
            ConfigurationError: it runs already, or its port was taken meanwhile.
            StorageError: its files cannot be used.
        """
        if shard in self._running:
            raise ConfigurationError(f"the server of shard {shard} runs already: stop it first")
        server = ServerThread(self._configs[shard]).__enter__()
        self._running[shard] = server
        self._configs[shard] = replace(self._configs[shard], bind=server.address)
        self.addresses = tuple(config.bind for config in self._configs)

    def stop(self, shard: int) -> None:
        """Stops a shard's server as SIGTERM would: with a last checkpoint, if it has a `checkpoint_dir`.

        Calls of workers are tried again until their timeout. `ConfigurationError` if the server does not run.
        """
        if shard not in self._running:
            raise ConfigurationError(f"the server of shard {shard} does not run: start it first")
        self._running.pop(shard).__exit__(None, None, None)

    def close(self) -> None:
        """Stops all servers that run."""
        for shard in list(self._running):
            self.stop(shard)


#: By option, the function that reads it as a text, as the command `psserver serve` does.
_PARSERS: dict[str, Callable[[str], object]] = {
    "checkpoint_dir": Path,
    "tls_ca": Path,
    "tls_cert": Path,
    "tls_key": Path,
    "token_file": Path,
    "checkpoint_every": parse_checkpoint_every,
    "consistency": parse_consistency,
    "journal_sync": JournalSync,
    "max_gradient_norm": parse_gradient_norm,
    "direct_port": parse_port,
    "memory_limit": parse_size,
    "progress_timeout": parse_timeout,
    "staleness": parse_staleness,
}


@contextmanager
def serve(shards: int = 1, **options: Any) -> Iterator[Servers]:  # noqa: ANN401 - of any field
    """Servers of one job in a `with` block, which ends when all are stopped.

        with serve(shards=2, consistency="sync:2", lease=5.0) as servers:
            with psworker.session(servers.addresses) as session: ...

    Args:
        shards: how many servers there are; each holds its part of the variables.
        options: as of `psserver serve`, with underscores, as texts or as fields of `psserver.config.ServerConfig`:
            `consistency`, `staleness`, `lease`, `checkpoint_dir`, `checkpoint_every`, `journal`, ...

    Raises:
        ConfigurationError: an invalid option.
        TypeError: there is no such option.
        StorageError: the folder of checkpoints cannot be used.
    """
    given = {name: _parsed(name, value) for name, value in options.items()}
    servers = Servers([ServerConfig(shard=shard, shards=shards, **given) for shard in range(shards)])
    try:
        for shard in range(shards):
            servers.start(shard)
        yield servers
    finally:
        servers.close()


def _parsed(name: str, value: Any) -> Any:  # noqa: ANN401
    if not isinstance(value, str) or name not in _PARSERS:
        return value
    try:
        return _PARSERS[name](value)
    except ValueError as error:
        raise ConfigurationError(f"{name}={value!r}: {error}") from error


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)
