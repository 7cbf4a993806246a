"""The ways of reaching shards, so that the same tests run over all of them."""

from collections.abc import Callable, Iterator

import pytest

from psworker.sessions.session import Session
from tests.lanes import EMBEDDED, GRPC, SHARED, SHARED_OF_TWO, parameters


@pytest.fixture(params=parameters(EMBEDDED, GRPC, SHARED, SHARED_OF_TWO))
def open_session(request) -> Iterator[Callable[..., Session]]:
    """A function that makes the session of a worker; all of one test's sessions share the same new shards.

    See `Lane.sessions` for what it takes.
    """
    with request.param.sessions() as session:
        yield session
