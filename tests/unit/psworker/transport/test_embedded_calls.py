"""Calls to the embedded shard: one that waits raises the error with which it ended, or that it is late."""

import pytest

from pswire.errors import NotJoined, TimedOut, Unavailable
from pswire.messages import Join, Leave, Left, QueueSpec, Sender, Take
from psworker.transport.embedded import EmbeddedTransport

QUEUE = QueueSpec("train", size=1, block=1, epochs=1)


def test_a_call_that_had_to_wait_raises_the_error_that_ended_it_or_that_it_is_late():
    transport = EmbeddedTransport()
    a, b = (Sender(name, transport.call(0, Join(name), 30.0).result().incarnation) for name in "ab")
    assert transport.call(0, Take(a, QUEUE), 30.0).result().block is not None
    replaced, left = (transport.call(0, Take(b, QUEUE), 30.0) for _ in range(2))
    with pytest.raises(Unavailable, match="another call of this worker has replaced this one"):
        replaced.result()
    assert transport.call(0, Leave(b), 30.0).result() == Left()
    with pytest.raises(NotJoined, match="worker 'b' has left: join again"):
        left.result()
    waiting = Sender("c", transport.call(0, Join("c"), 30.0).result().incarnation)
    with pytest.raises(TimedOut, match="did not answer Take in time: it waits for other threads"):
        transport.call(0, Take(waiting, QUEUE), 0.0).result()
