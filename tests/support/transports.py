"""Tensor transports between a worker and its shards, as parameters: the same tests run over all of them."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire import placement
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from psworker.sessions.strategies.local_steps import OUTER
from psworker.transport import grpc_transport, shared_memory
from psworker.transport.embedded import EmbeddedTransport
from tests.support.shared_folder import shared_folder


@dataclass(frozen=True)
class TransportCase:
    """A tensor transport and a number of servers; 0: a shard in the worker.

    Two servers split each variable of 64 bytes; shared memory is used for all tensors, however small, or for none.
    """

    name: str
    shards: int = 1
    shared_memory: bool = False
    unix: bool = False

    @contextmanager
    def sessions(self) -> Iterator[Callable[..., Session]]:
        """A function that makes the session of a worker; all sessions share the same new shards.

        Options after the worker's name: fields of `WorkerConfig`, and `outer`.
        """
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            if self.shared_memory:
                stack.enter_context(shared_folder(patch))
                patch.setattr(grpc_transport, "MIN_SHARED_BYTES", 1)
                patch.setattr(shared_memory, "MIN_BORROWED_BYTES", 1)
                patch.setattr(shared_memory, "MIN_SEGMENT_BYTES", 4096)
            if self.shards > 1:
                patch.setattr(placement, "SPLIT_BYTES", 64)
            transport = None if self.shards else EmbeddedTransport()
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ps-"))
            binds = [f"unix:{folder}/{shard}" if self.unix else "127.0.0.1:0" for shard in range(self.shards)]
            configs = [ServerConfig(bind, shard=shard, shards=self.shards) for shard, bind in enumerate(binds)]
            addresses = tuple([stack.enter_context(ServerThread(config)).address for config in configs])

            def session(worker: str, *, outer: Any = OUTER, **options: Any) -> Session:
                memory = self.shared_memory
                config = WorkerConfig(addresses, worker, 30, shared_memory=memory, resume=True, **options)
                return Session(config, transport, outer)

            yield session


EMBEDDED = TransportCase("embedded", shards=0)
GRPC = TransportCase("grpc")
GRPC_OF_TWO = TransportCase("grpc over unix sockets, 2 shards", shards=2, unix=True)
SHARED = TransportCase("shared memory", shared_memory=True)
SHARED_OF_TWO = TransportCase("shared memory, 2 shards", shards=2, shared_memory=True)


def parameters(*cases: TransportCase, slow: Sequence[TransportCase] = ()) -> list[Any]:
    """The cases as parameters of a test or a fixture, those of `slow` marked as slow."""
    return [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (case in slow)) for case in (*cases, *slow)]
