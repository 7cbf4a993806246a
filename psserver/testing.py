"""Servers in this process, for tests of programs and for notebooks: real shards behind gRPC, on loopback addresses.

A server is a thread with an event loop. One that is killed needs a process of its own: `psserver serve`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.errors import ConfigurationError
from pswire.specs.consistency import parse_consistency, parse_staleness

__all__ = ["Servers", "serve"]


class Servers:
    """The servers of a job, one a shard. Made by `serve`, whose thread alone may use it.

    Attributes:
        addresses: those of all servers, in the order of their shards; `stop` and `start` keep them.
    """

    addresses: tuple[str, ...]

    def __init__(self, configs: Sequence[ServerConfig]) -> None:
        self._configs = list(configs)
        self._running: dict[int, ServerThread] = {}

    def start(self, shard: int) -> None:
        """Starts a shard's server, again at its address: with what its `checkpoint_dir` has, without one empty.

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


@contextmanager
def serve(
    shards: int = 1,
    *,
    consistency: str = "async",
    staleness: str = "none",
    **options: Any,  # noqa: ANN401 - of any field
) -> Iterator[Servers]:
    """Servers of one job in a `with` block, which ends when all are stopped.

        with serve(shards=2, consistency="sync:2") as servers:
            with psworker.session(servers.addresses) as session: ...

    Args:
        shards: how many servers there are; each holds its part of the variables.
        consistency: as `psserver serve` takes it, such as "bounded:2".
        staleness: likewise, such as "drop:4".
        options: other fields of `psserver.config.ServerConfig`, such as `lease` in seconds or `checkpoint_dir`, a Path.

    Raises:
        ConfigurationError: an invalid option.
        StorageError: the folder of checkpoints cannot be used.
    """
    options |= {"consistency": parse_consistency(consistency), "staleness": parse_staleness(staleness)}
    servers = Servers([ServerConfig(shard=shard, shards=shards, **options) for shard in range(shards)])
    try:
        for shard in range(shards):
            servers.start(shard)
        yield servers
    finally:
        servers.close()
