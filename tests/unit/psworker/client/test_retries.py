"""Retries while a shard cannot be reached: pauses, the time of each try, and the end.

Time passes only in pauses.
"""

import logging
import math
import threading

import pytest

from pswire.errors import Unavailable
from pswire.messages import Pull, Pulled, Sender
from psworker.client import retrying_calls
from psworker.client.chief import ChiefStatus
from psworker.client.client import Client
from psworker.client.retrying_calls import RetryingCalls
from psworker.transport import Future
from tests.shards_in_process import ShardsInProcess


class Unreachable(ShardsInProcess):
    """One shard, which for some calls cannot be reached; time passes only while somebody pauses.

    Attributes:
        down: how many more calls fail.
        timeouts: those of the calls, in order.
    """

    def __init__(self):
        super().__init__(1)
        self.down, self.timeouts = 0, []

    def call(self, shard, message, timeout):
        self.timeouts.append(timeout)
        if not self.down:
            return super().call(shard, message, timeout)
        self.down -= 1

        def fail():
            raise Unavailable("cut off")

        return Future(fail)

    def monotonic(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds


@pytest.fixture
def unreachable(monkeypatch):
    """The transport, and a worker that pauses for 0.5 s first, then for twice as long."""
    transport = Unreachable()
    client = Client(transport, "w0", timeout=60)
    client.join()
    monkeypatch.setattr(retrying_calls, "FIRST_PAUSE", 0.5)
    monkeypatch.setattr(retrying_calls.time, "monotonic", transport.monotonic)
    monkeypatch.setattr(retrying_calls.time, "sleep", transport.pause)
    transport.timeouts.clear()
    return transport, client


def test_leaving_is_tried_again_when_the_shard_cannot_be_reached_for_a_moment(unreachable, caplog):
    transport, client = unreachable
    transport.down = 2
    with caplog.at_level(logging.INFO, "psworker.client.retrying_calls"):
        client.leave()
    assert transport.status(0).workers[0].state == "left"
    assert (transport.timeouts, transport.now, caplog.messages) == ([2.0, 1.5, 0.5], 1.5, [])


def test_leaving_is_abandoned_after_two_seconds(unreachable, caplog):
    transport, client = unreachable
    transport.down = 10
    with caplog.at_level(logging.INFO, "psworker.client.retrying_calls"):
        client.leave()
    assert (transport.timeouts, transport.now) == ([2.0, 1.5, 0.5], 1.5)
    assert caplog.messages == ["worker w0, shard 0: left without an answer: cut off"]


class Closing(threading.Event):
    """What is set when a client leaves; to wait for it takes no time but the transport's.

    Attributes:
        after: seconds of that time after which it is set.
    """

    def __init__(self, transport, after=math.inf):
        super().__init__()
        self._transport, self.after = transport, after

    def wait(self, timeout=None):
        left = min(timeout, self.after - self._transport.now)
        self._transport.pause(left)
        if self._transport.now >= self.after:
            self.set()
        return self.is_set()


def pull_that_fails(unreachable, after=math.inf):
    """Tries a pull for 10 seconds, while the shard cannot be reached; what is raised."""
    transport, client = unreachable
    transport.down = 100
    some = RetryingCalls(transport, "w0", 10.0, Closing(transport, after), lambda shard, since: "", ChiefStatus("w0"))
    sent = some.send([Pull(Sender("w0", 1), ("a",))])
    with pytest.raises(Unavailable) as caught:
        some.results(sent, Pulled)
    transport.down = 0
    client.leave()
    client.close()
    return str(caught.value)


def test_pauses_between_two_tries_double_up_to_two_seconds_and_each_try_has_the_time_that_is_left(unreachable):
    text = pull_that_fails(unreachable)
    assert text == "gave up after 10.0 s: cut off"
    tries = unreachable[0].timeouts[:-1]  # the last is that of the good-bye
    assert tries == [10.0, 9.5, 8.5, 6.5, 4.5, 2.5, 0.5, 0.5]


def test_a_call_of_a_client_that_leaves_is_not_tried_again(unreachable):
    text = pull_that_fails(unreachable, after=1.0)
    assert text == "gave up after 1.0 s: cut off"
    assert unreachable[0].timeouts[:-1] == [10.0, 9.5, 9.0]
