"""Sessions for integration tests: with an embedded shard, and in the slow tests over every other transport."""

from collections.abc import Callable, Iterator

import pytest

from pswire.messages import Status, StatusReport
from psworker.sessions.session import Session
from tests.transports import EMBEDDED, GRPC, SHARED, SHARED_OF_TWO, parameters


@pytest.fixture(params=parameters(EMBEDDED, slow=(GRPC, SHARED, SHARED_OF_TWO)))
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
