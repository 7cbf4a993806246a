"""Tensor transports between a worker and its shards, as parameters: the same tests run over all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psworker.client import placement
from psworker.config import StrategyConfig, WorkerConfig
from psworker.sessions.session import Session
from psworker.sessions.strategies.local_steps import OUTER
from psworker.transport import connection, shared_memory
from psworker.transport.embedded import EmbeddedTransport
from tests.shared_folder import needs_shared_memory, shared_folder


@dataclass(frozen=True)
class TransportCase:
    """One way.

    Attributes:
        name: what tests over it are called.
        shards: how many servers there are, among which all that has 64 bytes is split; 0: a shard in the worker.
        shared_memory: whether tensors go through shared memory, however small they are; otherwise none does.
        unix: whether the servers' addresses are in the file system.
    """

    name: str
    shards: int = 1
    shared_memory: bool = False
    unix: bool = False

    @contextmanager
    def sessions(self) -> Iterator[Callable[..., Session]]:
        """A function that makes the session of a worker; all of them share the same new shards.

        Behind the worker's name it takes what an `StrategyConfig` does, and `outer`, `encoding` and `compression`.
        """
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            if self.shared_memory:
                stack.enter_context(shared_folder(patch))
                patch.setattr(connection, "MIN_SHARED_BYTES", 1)
                patch.setattr(shared_memory, "MIN_BORROWED_BYTES", 1)
                patch.setattr(shared_memory, "MIN_SEGMENT_BYTES", 4096)
            if self.shards > 1:
                patch.setattr(placement, "SPLIT_BYTES", 64)
            transport = None if self.shards else EmbeddedTransport()
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ps-")) if self.unix else ""
            addresses = []
            for shard in range(self.shards):
                bind = f"unix:{folder}/{shard}" if self.unix else "127.0.0.1:0"
                server = ServerThread(ServerConfig(bind, shard=shard, shards=self.shards))
                addresses.append(stack.enter_context(server).address)

            def session(worker: str, *, outer: Any = OUTER, **options: Any) -> Session:
                travel = {name: options.pop(name) for name in ("encoding", "compression") if name in options}
                config = WorkerConfig(
                    tuple(addresses),
                    worker,
                    timeout=30,
                    strategy=StrategyConfig(**options),
                    shared_memory=self.shared_memory,
                    **travel,
                )
                return Session(config, transport, outer)

            yield session


EMBEDDED = TransportCase("embedded", shards=0)
GRPC = TransportCase("grpc")
GRPC_OF_TWO = TransportCase("grpc over unix sockets, 2 shards", shards=2, unix=True)
SHARED = TransportCase("shared memory", shared_memory=True)
SHARED_OF_TWO = TransportCase("shared memory, 2 shards", shards=2, shared_memory=True)


def parameters(*cases: TransportCase, slow: Sequence[TransportCase] = ()) -> list[Any]:
    """The cases as parameters of a test or a fixture; those of `slow` are marked so."""
    return [
        pytest.param(
            case, id=case.name, marks=[needs_shared_memory] * case.shared_memory + [pytest.mark.slow] * (case in slow)
        )
        for case in (*cases, *slow)
    ]
