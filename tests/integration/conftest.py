"""The two ways of reaching a shard, so that the same tests run over both."""

from collections.abc import Callable, Iterator

import pytest

from psserver.config import ServerConfig
from psserver.server import ServerThread
from psworker.config import WorkerConfig
from psworker.session import Session
from psworker.transport import Transport
from psworker.transport.embedded import EmbeddedTransport
from psworker.transport.network import NetworkTransport


@pytest.fixture(params=["embedded", "grpc"])
def open_session(request) -> Iterator[Callable[[str], Session]]:
    """A function that makes the session of a worker; all of one test's sessions share one new shard."""
    if request.param == "embedded":
        transport: Transport = EmbeddedTransport()
        yield lambda worker: Session(WorkerConfig(name=worker, timeout=30), transport)
    else:
        with ServerThread(ServerConfig()) as server:
            yield lambda worker: Session(
                WorkerConfig((server.address,), worker, timeout=30), NetworkTransport([server.address])
            )
