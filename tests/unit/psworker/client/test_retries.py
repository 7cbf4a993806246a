"""Retries, rejoins and the heartbeat: pauses, the time of each try, logged reasons, and which worker is chief."""

import logging
import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from pswire import messages as ms
from pswire.errors import NotJoined, TimedOut, Unavailable, Zombie
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Bounded
from pswire.tensors.values import TensorSpec
from psworker.client import retrying_calls
from psworker.client.retrying_calls import Heartbeat, RetryingCalls
from psworker.transport import Future
from psworker.versions import ReadVersion, VersionedArray
from tests.shards_in_process import ShardsInProcess

DECLARED = ms.Declaration(TensorSpec("a", (2,), "float64"), np.zeros(2), GradientDescent(1.0))
start_heartbeat = Heartbeat.start


class Scripted:
    """A transport of one shard that answers as the script says, and at its end sets `closing`."""

    shards = 1

    def __init__(self, *script):
        self.closing, self.script = threading.Event(), iter(script)
        self.calls = RetryingCalls(self, "w0", 10.0, self.closing)
        self.calls.sender = ms.Sender("w0", 1)
        self.sent, self.timeouts = [], []

    def call(self, shard, message, timeout):
        self.sent.append(message)
        self.timeouts.append(timeout)
        return Future(self.answer)

    def answer(self):
        answer = next(self.script, None)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            self.closing.set()
        return answer or ms.Renewed(0, "the end")

    def tensor_transport(self, shard):
        return f"transport {len(self.sent)}"


def answered(caplog, *script, half_pushes=0, idle_since=0):
    """The transport after heartbeats that were answered with the script, and what was logged."""
    transport = Scripted(*script)
    transport.calls.half_pushes[0] = half_pushes
    heartbeat = Heartbeat(transport.calls)
    heartbeat.idle_since = idle_since
    with caplog.at_level(logging.INFO, "psworker.client.retrying_calls"):
        start_heartbeat(heartbeat, lease=0.003)
        heartbeat.join()
    return transport, [(record.levelname, record.getMessage()) for record in caplog.records]


def test_the_reason_of_a_held_push_is_logged_when_it_appears_and_changes_and_the_last_is_kept_with_its_time(caplog):
    began = time.monotonic()
    script = ["", "w1 is at step 3", "w1 is at step 3", "w2 is at step 3", "", "w2 is at step 3"]
    transport, logged = answered(caplog, *(ms.Renewed(1, reason) for reason in script))
    reasons = ("w1 is at step 3", "w2 is at step 3", "w2 is at step 3", "the end")
    assert logged == [("WARNING", f"w0 waits, shard 0: {reason}") for reason in reasons]
    at, reason = transport.calls.hold_reasons[0]
    assert (began < at < time.monotonic(), reason) == (True, "the end")


def test_the_heartbeat_goes_on_after_temporary_errors_and_ends_after_others(caplog):
    script = Unavailable("gone"), TimedOut("late"), NotJoined("slept"), ms.Renewed(0, "w1"), Zombie("taken")
    transport, logged = answered(caplog, *script)
    assert not transport.closing.is_set(), "it has ended by itself"
    assert logged == [
        ("INFO", "w0: heartbeat to shard 0: gone"),
        ("WARNING", "w0: heartbeat to shard 0: late"),
        ("INFO", "w0: heartbeat to shard 0: slept"),
        ("WARNING", "w0 waits, shard 0: w1"),
        ("INFO", "w0: heartbeat to shard 0: taken"),
    ]
    assert transport.calls.hold_reasons == {}, "discarded when a heartbeat fails"


def test_each_heartbeat_reports_the_tensor_transport_half_pushes_and_whether_the_worker_is_idle(caplog):
    transport, _ = answered(caplog, ms.Renewed(0), ms.Renewed(0), half_pushes=3, idle_since=7)
    assert transport.sent == [ms.Renew(ms.Sender("w0", 1), True, f"transport {n}", 7, 3) for n in range(3)]


@pytest.mark.parametrize(
    "answer", [ms.Joined(1, 0, 15.0, 0, chief=True), ms.Renewed(0, chief=True), ms.Taken(None, chief=True)]
)
def test_chief_is_the_last_report_of_shard_0_but_no_older_heartbeat_and_taking_over_is_logged_once(answer, caplog):
    calls = Scripted().calls
    for shard, report, chief in [
        (1, answer, False),
        (0, ms.Renewed(0), False),
        (0, answer, True),
        (0, answer, True),
        (0, ms.Left(), True),
        (0, ms.Pushed(ms.Outcome.APPLIED, 0, 1), True),
        (1, replace(answer, chief=False), True),
        (0, ms.Renewed(0), False),
    ]:
        calls.update_chief(shard, report)
        assert calls.chief == chief
    assert caplog.messages == ["w0 is now the chief: the previous one is gone"]
    asked = calls.chief_reports
    calls.update_chief(0, answer)
    for reports, chief in ((asked, True), (calls.chief_reports, False)):  # a heartbeat's answer may be out of date
        calls.update_chief(0, ms.Renewed(0), reports)
        assert calls.chief == chief


class Clock:
    """The time, which passes in pauses alone; also the event of a client that leaves `after` seconds."""

    def __init__(self, after):
        self.now, self.after = 0.0, after
        self.is_set = lambda: self.now >= after

    def wait(self, seconds):
        self.now += min(seconds, self.after - self.now)


def unreachable(monkeypatch, after=math.inf):
    """A transport to a shard that cannot be reached, and the clock; the first pause is 0.5 s."""
    clock, transport = Clock(after), Scripted(*[Unavailable("cut off")] * 20)
    transport.calls.closing = clock
    monkeypatch.setattr(retrying_calls, "INITIAL_BACKOFF", 0.5)
    monkeypatch.setattr(retrying_calls.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(retrying_calls.time, "sleep", clock.wait)
    return transport, clock


def test_leaving_is_tried_again_for_two_seconds(monkeypatch, caplog):
    transport, clock = unreachable(monkeypatch)
    with caplog.at_level(logging.INFO, "psworker.client.retrying_calls"):
        assert transport.calls.call_best_effort(0, ms.Leave(ms.Sender("w0", 1)), "left without an answer") is None
    assert (transport.timeouts, clock.now) == ([2.0, 1.5, 0.5], 1.5)
    assert caplog.messages == ["worker w0, shard 0: left without an answer: cut off"]


ALL_TRIES = [10.0, 9.5, 8.5, 6.5, 4.5, 2.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("after", "answered", "text", "tries"),
    [
        (math.inf, -1.0, "gave up after 10.0 s: cut off", ALL_TRIES),
        (math.inf, math.inf, "gave up after 10.0 s: cut off: shard 0 held the push: w0 is slow", ALL_TRIES),
        (1.0, -1.0, "gave up after 1.0 s: cut off", [10.0, 9.5, 9.0]),
    ],
    ids=["held before the push", "held", "the client leaves"],
)
def test_pauses_double_up_to_two_seconds_each_try_has_the_time_left_and_the_error_names_why_the_push_was_held(
    monkeypatch, after, answered, text, tries
):
    transport, _ = unreachable(monkeypatch, after)
    transport.calls.hold_reasons[0] = answered, "w0 is slow"
    with pytest.raises(Unavailable, match=f"^{text}$"):
        transport.calls.call(0, ms.Push(ms.Sender("w0", 1), 1, ()), ms.Pushed)
    assert transport.timeouts == tries


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
    sent = [(shard, type(message)) for shard, message in transport.sent]
    assert sent == [(0, ms.Renew), (0, ms.Leave), (1, ms.Leave), (2, ms.Leave)]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "worker w0, shard 0: could not report that it is idle: not this one"),
        ("WARNING", "worker w0, shard 0: left without an answer: not this one"),
        ("INFO", "worker w0, shard 1: left without an answer: no answer"),
    ]


def gradient(version=0):
    return VersionedArray("a", ReadVersion((version,)), np.full(2, -1.0))


def test_a_worker_whose_lease_has_ended_goes_on_and_knows_whether_it_is_chief_and_one_whose_name_was_taken_ends():
    transport = ShardsInProcess(1, lease=1000.0)
    client, _ = transport.client("w0", DECLARED)
    client.push([gradient()]).result()
    other, _ = transport.client("w1")
    assert (client.chief, other.chief) == (True, False)
    queue = ms.QueueSpec("q", size=4, block=2, epochs=1)
    held = client.take(queue, None).block
    transport.sleep(600)
    other.report_idle()
    transport.sleep(600)
    pushed = client.push([gradient(1)], pull=("a",)).result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (ms.Outcome.APPLIED, 2, 2)
    other.report_idle()
    assert (client.chief, other.chief) == (False, True)
    transport.sleep(2000)
    assert client.take(queue, ms.Finished(held.number)).block == held, "its result counts for nothing, and it is free"
    transport.client("w0")
    for _ in range(2):
        with pytest.raises(Zombie, match="do two workers have the same name"):
            client.push([gradient(2)]).result()
        transport.sleep(2000)


def test_a_held_push_whose_lease_has_ended_is_sent_again_and_counts_once(caplog):
    transport = ShardsInProcess(2, Bounded(0), lease=1000.0)
    (fast, _), (slow, _) = (transport.client(worker, DECLARED) for worker in ("fast", "slow"))
    slow.push([gradient()]).result()
    held = fast.push([gradient()], pull=["a"])
    transport.sleep(2000)  # both are lost, and their pushes with them
    slow.push([gradient(1)]).result()
    slow.report_idle()
    pushed = held.result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (ms.Outcome.APPLIED, 3, 3)
    sent = [shard for shard, message in transport.messages(ms.Push) if message.sender.worker == "fast"]
    assert sent == [0, 0], "shard 1 has nothing to do for it"
    assert "fast joins shard 0 again" in caplog.text
