"""Calls to the embedded shard: one that waits and is replaced raises the error with which it ended."""

import pytest

from pswire.errors import NotJoined, Unavailable
from pswire.messages import Join, Leave, Left, QueueSpec, Sender, Take
from psworker.transport.embedded import EmbeddedTransport

QUEUE = QueueSpec("train", size=1, block=1, epochs=1)
SECONDS = 30.0


def test_a_call_that_had_to_wait_and_is_forgotten_raises():
    transport = EmbeddedTransport()
    a, b = (Sender(name, transport.call(0, Join(name), SECONDS).result().incarnation) for name in "ab")
    assert transport.call(0, Take(a, QUEUE), SECONDS).result().block is not None
    earlier, later = (transport.call(0, Take(b, QUEUE), SECONDS) for _ in range(2))
    with pytest.raises(Unavailable, match="another call of this worker has replaced this one"):
        earlier.result()
    assert transport.call(0, Leave(b), SECONDS).result() == Left()
    with pytest.raises(NotJoined, match="worker 'b' has left: join again"):
        later.result()
