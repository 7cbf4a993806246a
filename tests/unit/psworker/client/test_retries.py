"""Retries of calls: pauses, the time of each try, and the end. Time passes only in pauses."""

import logging
import math
import threading

import pytest

from pswire.errors import InvalidMessage, TimedOut, Unavailable
from pswire.messages import Push, Sender
from psworker.client import retrying_calls
from psworker.client.retrying_calls import RetryingCalls
from psworker.transport import Future
from tests.shards_in_process import ShardsInProcess


class Unreachable(ShardsInProcess):
    """One shard that cannot be reached for the next `down` calls; `timeouts` has those of all calls, in order."""

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

    def pause(self, seconds):
        self.now += seconds


@pytest.fixture
def unreachable(monkeypatch):
    """The transport, and a worker whose first pause is 0.5 s."""
    transport = Unreachable()
    client, _ = transport.client()
    monkeypatch.setattr(retrying_calls, "INITIAL_BACKOFF", 0.5)
    monkeypatch.setattr(retrying_calls.time, "monotonic", lambda: transport.now)
    monkeypatch.setattr(retrying_calls.time, "sleep", transport.pause)
    transport.timeouts.clear()
    return transport, client


@pytest.mark.parametrize(
    ("down", "state", "messages"),
    [(2, "left", []), (10, "live", ["worker w0, shard 0: left without an answer: cut off"])],
)
def test_leaving_is_tried_again_for_two_seconds(unreachable, caplog, down, state, messages):
    transport, client = unreachable
    transport.down = down
    with caplog.at_level(logging.INFO, "psworker.client.retrying_calls"):
        client.leave()
    assert transport.status(0).workers[0].state == state
    assert (transport.timeouts, transport.now, caplog.messages) == ([2.0, 1.5, 0.5], 1.5, messages)


class Closing(threading.Event):
    """The event set when a client leaves, `after` seconds of the transport's time, which passes in waits."""

    def __init__(self, transport, after=math.inf):
        super().__init__()
        self._transport, self.after = transport, after

    def wait(self, timeout=None):
        self._transport.pause(min(timeout, self.after - self._transport.now))
        if self._transport.now >= self.after:
            self.set()
        return self.is_set()


def error_of(transport, timeout, closing, answered=0.0, reason=""):
    """The text of the error of a push over these retrying calls, with the reason in the last answer to a heartbeat."""
    calls = RetryingCalls(transport, "w0", timeout, closing)
    calls.hold_reasons[0] = answered, reason
    with pytest.raises((Unavailable, TimedOut)) as caught:
        calls.results(calls.send([Push(Sender("w0", 1), 1, ())]), Push)
    return str(caught.value)


@pytest.mark.parametrize(
    ("after", "text", "tries"),
    [
        (math.inf, "gave up after 10.0 s: cut off", [10.0, 9.5, 8.5, 6.5, 4.5, 2.5, 0.5, 0.5]),
        (1.0, "gave up after 1.0 s: cut off", [10.0, 9.5, 9.0]),
    ],
)
def test_pauses_double_up_to_two_seconds_each_try_has_the_time_left_and_leaving_ends_them(
    unreachable, after, text, tries
):
    transport, _ = unreachable
    transport.down = 100
    assert error_of(transport, 10.0, Closing(transport, after)) == text
    assert transport.timeouts == tries


@pytest.mark.parametrize(("answered", "held"), [(math.inf, ": shard 0 held the push: w0 is slow"), (0.0, "")])
def test_a_timeout_names_the_shard_that_held_the_push_and_the_reason_unless_it_is_from_before(answered, held):
    transport = ShardsInProcess(1)
    transport.lose = lambda shard, message: True
    text = error_of(transport, 0.05, threading.Event(), answered, "w0 is slow")
    assert text.startswith("gave up after 0.")
    assert text.endswith(f"s: no answer{held}")
    assert len(transport.sent) > 1, "it has tried again"


def test_permanent_errors_are_not_tried_again():
    transport = ShardsInProcess(1)
    transport.refuse = lambda shard, message: True
    with pytest.raises(InvalidMessage, match=r"^not this one$"):
        transport.client()
    assert len(transport.sent) == 1
