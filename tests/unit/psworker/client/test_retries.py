"""Retries, rejoins and held pushes: pauses, the time of each try, and the end. Time passes only in pauses."""

import logging
import math
import threading

import numpy as np
import pytest

from pswire.errors import InvalidMessage, TimedOut, Unavailable, Zombie
from pswire.messages import Declaration, Finished, Leave, Outcome, Push, QueueSpec, Renew, Sender
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Bounded
from pswire.tensors.values import TensorSpec
from psworker.client import retrying_calls
from psworker.client.retrying_calls import RetryingCalls
from psworker.transport import Future
from psworker.versions import ReadVersion, VersionedArray
from tests.shards_in_process import ShardsInProcess

DECLARED = Declaration(TensorSpec("a", (2,), "float64"), np.zeros(2), GradientDescent(1.0))


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


def test_failed_reports_of_an_idle_or_leaving_worker_are_logged(caplog):
    transport = ShardsInProcess(3)
    client, _ = transport.client()
    transport.refuse = lambda shard, message: shard == 0
    transport.lose = lambda shard, message: shard == 1
    transport.sent.clear()
    with caplog.at_level(logging.INFO, "psworker.client.retrying_calls"):
        client.report_idle()
        client.leave()
        client.report_idle()  # after it has left it reports nothing more
    assert [(shard, type(message)) for shard, message in transport.sent] == [
        (0, Renew),
        *((n, Leave) for n in range(3)),
    ]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "worker w0, shard 0: could not report that it is idle: not this one"),
        ("WARNING", "worker w0, shard 0: left without an answer: not this one"),
        ("INFO", "worker w0, shard 1: left without an answer: no answer"),
    ]


def gradient(version=0):
    return VersionedArray("a", ReadVersion((version,)), np.full(2, -1.0))


def registered(transport, worker):
    return transport.client(worker, DECLARED)[0]


@pytest.fixture
def sleeping():
    """A transport, and a worker that has pushed once."""
    transport = ShardsInProcess(1, lease=1000.0)
    client = registered(transport, "w0")
    client.push([gradient()]).result()
    return transport, client


def test_a_worker_whose_lease_has_ended_joins_again_and_goes_on(sleeping):
    transport, client = sleeping
    queue = QueueSpec("q", size=4, block=2, epochs=1)
    held = client.take(queue, None).block
    transport.sleep(2000)
    pushed = client.push([gradient(1)], pull=("a",)).result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (Outcome.APPLIED, 2, 2)
    transport.sleep(2000)
    assert client.take(queue, Finished(held.number)).block == held, "its result counts for nothing, and it is free"


def test_a_worker_whose_name_was_taken_ends(sleeping):
    transport, client = sleeping
    transport.client("w0")
    for _ in range(2):
        with pytest.raises(Zombie, match="do two workers have the same name"):
            client.push([gradient(1)]).result()
        transport.sleep(2000)


def test_a_worker_that_joins_again_knows_whether_it_is_still_chief(sleeping):
    transport, client = sleeping
    other, _ = transport.client("w1")
    assert (client.chief, other.chief) == (True, False)
    transport.sleep(600)
    other.report_idle()
    transport.sleep(600)
    client.push([gradient(1)]).result()
    other.report_idle()
    assert (client.chief, other.chief) == (False, True)


@pytest.fixture
def held():
    """A transport, the future of a held push of worker `fast`, and worker `slow`, which is behind."""
    transport = ShardsInProcess(2, Bounded(0), lease=1000.0)
    fast, slow = registered(transport, "fast"), registered(transport, "slow")
    slow.push([gradient()]).result()
    return transport, fast.push([gradient()], pull=["a"]), slow


def pushes_of_fast(transport):
    return [(shard, message) for shard, message in transport.messages(Push) if message.sender.worker == "fast"]


def test_a_held_push_whose_lease_has_ended_is_sent_again_and_counts_once(held, caplog):
    transport, handle, slow = held
    transport.sleep(2000)  # both are lost, and their pushes with them
    slow.push([gradient(1)]).result()
    slow.report_idle()
    pushed = handle.result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (Outcome.APPLIED, 3, 3)
    assert [shard for shard, _ in pushes_of_fast(transport)] == [0, 0], "shard 1 has nothing to do for it"
    assert "fast joins shard 0 again" in caplog.text


def test_a_held_push_that_a_later_call_has_replaced_is_sent_again_and_counts_once(held):
    transport, handle, slow = held
    ((_, push),) = pushes_of_fast(transport)
    transport.call(0, push, 0.0)  # the network has doubled it, and the second answer is lost
    slow.report_idle()
    pushed = handle.result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (Outcome.REPEATED, 2, 2)
    assert [(shard, message.idle) for shard, message in transport.messages(Renew)] == [(0, True)], "shard 0 decides"
