"""Sessions with an embedded shard, and in the slow tests over every other transport; examples run in the process."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pswire.messages import Status, StatusReport
from psworker.client.heartbeat import Heartbeat
from psworker.sessions.session import Session
from tests.support.servers import DIRECT, EMBEDDED, GRPC, SHARED, SHARED_OF_TWO, parameters

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=parameters(EMBEDDED, slow=(GRPC, DIRECT, SHARED, SHARED_OF_TWO)))
def open_session(request) -> Iterator[Callable[..., Session]]:
    """A function that makes the session of a worker; all of one test's sessions share the same new shards.

    See `TransportCase.sessions` for its arguments. A test that is to run over other transports in the fast suite too
    names them with `pytest.mark.parametrize("open_session", parameters(...), indirect=True)`.
    """
    with request.param.sessions() as session:
        yield session


@pytest.fixture
def status() -> Callable[[Session], StatusReport]:
    """A function that gives the status of the first shard of a session."""
    return lambda session: session._client._calls.transport.call(0, Status(), 10).result()


@pytest.fixture
def servers_stop_at_once(monkeypatch):
    """Servers that stop do not wait for workers to leave, for tests whose workers stay when a server moves."""
    monkeypatch.setattr("psserver.rpc.server.LEAVE_TIMEOUT", 0.01)


@pytest.fixture
def frequent_heartbeats(monkeypatch):
    """Workers renew their leases, which are as long as ever, ten times as often: tests wait for a heartbeat."""
    start = Heartbeat.start
    monkeypatch.setattr(Heartbeat, "start", lambda heartbeat, lease, *policy: start(heartbeat, lease / 10, *policy))


@pytest.fixture
def run_example(monkeypatch):
    """A function that runs an example in this process with these arguments and gives its module."""

    def run(name, *arguments):
        path = ROOT / "examples" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return run
