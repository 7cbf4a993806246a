"""Retries, rejoins and the heartbeat: pauses, the time of each try, logged reasons, and which worker is chief."""

import logging
import math
import threading
import time
from dataclasses import replace
from itertools import chain, repeat

import pytest

from pswire import messages as ms
from pswire.errors import NotJoined, TimedOut, Unavailable, Zombie
from psworker.client import retry
from psworker.client.heartbeat import Heartbeat
from psworker.client.membership import WorkerMembership
from psworker.client.retry import Calls
from psworker.transport import Future

start_heartbeat = Heartbeat.start


class Scripted:
    """A transport of one shard that answers as the script says, and at its end sets `closing`."""

    shards = 1

    def __init__(self, *script):
        self.closing, self.script = threading.Event(), iter(script)
        self.membership = WorkerMembership(self, "w0")
        self.membership.sender = ms.Sender("w0", 1)
        self.calls = Calls(self, self.membership, 10.0, self.closing)
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
        return answer or ms.Renewed(waiting_for="the end")

    def tensor_transport(self, shard):
        return f"transport {len(self.sent)}"


def answered(caplog, *script):
    """The transport after heartbeats that were answered with the script, and what was logged."""
    transport = Scripted(*script)
    transport.membership.half_pushes[0] = 3
    heartbeat = Heartbeat(transport.calls)
    heartbeat.idle_since = 7
    with caplog.at_level(logging.INFO, "psworker.client"):
        start_heartbeat(heartbeat, 0.003, "bounded:1")
        heartbeat.join()
    return transport, [(record.levelname, record.getMessage()) for record in caplog.records]


REFUSED, SILENT = Unavailable("job 'other' cannot begin while the servers run job 1"), TimedOut("the server is busy")


def test_a_call_that_is_given_up_has_the_reason_of_the_server_although_the_last_try_was_too_short_for_an_answer():
    transport = Scripted()
    transport.script = chain([REFUSED], repeat(SILENT))
    transport.calls._timeout = 0.0
    sent = transport.calls.send({0: ms.Status()}, timeout=0.01)
    with pytest.raises(Unavailable, match=r"^gave up after .* s: job 'other' cannot begin while the servers run "):
        transport.calls.results(sent, ms.StatusReport)
    transport.calls.send({0: ms.Status()})
    assert transport.timeouts[-1] == retry.MIN_TRY_SECONDS, "of the first try, too"


def test_a_call_whose_last_try_was_long_has_the_reason_of_that_try():
    def script():
        yield REFUSED
        transport.closing.set()
        yield SILENT

    transport = Scripted()
    transport.script = script()
    with pytest.raises(TimedOut, match=r"^gave up after .* s: the server is busy$"):
        transport.calls.call(0, ms.Status(), ms.StatusReport)


def test_heartbeats_report_the_workers_state_and_new_reasons_of_a_held_push_are_logged_and_the_last_is_kept(caplog):
    began = time.monotonic()
    script = ["", "w1 is at step 3", "w1 is at step 3", "w2 is at step 3", "", "w2 is at step 3"]
    transport, logged = answered(caplog, *(ms.Renewed(global_step=1, waiting_for=reason) for reason in script))
    reasons = ("w1 is at step 3", "w2 is at step 3", "w2 is at step 3", "the end")
    assert logged == [("WARNING", f"w0 waits, shard 0: {reason}") for reason in reasons]
    at, reason = transport.membership.hold_reasons[0]
    assert (began < at < time.monotonic(), reason) == (True, "the end")
    assert transport.sent == [
        ms.Renew(sender=ms.Sender("w0", 1), idle=True, tensor_transport=f"transport {n}", settled=7, half_pushes=3)
        for n in range(7)
    ]


def test_a_wait_that_the_policy_makes_normal_is_no_warning_until_nothing_changes_between_two_heartbeats(caplog):
    script = [f"bounded:1: w1 is at step {step}" for step in (3, 4, 4, 4, 5)] + ["", "bounded:1: w1 is at step 5"]
    _, logged = answered(caplog, *(ms.Renewed(waiting_for=reason) for reason in script))
    steps = ("INFO", 3), ("INFO", 4), ("WARNING", 4), ("INFO", 5), ("INFO", 5)
    assert logged[:-1] == [(level, f"w0 waits, shard 0: bounded:1: w1 is at step {step}") for level, step in steps]


def test_heartbeats_report_the_newest_cut_that_all_shards_have_written(caplog):
    transport, _ = answered(caplog, *(ms.Renewed(global_step=1, written=cuts) for cuts in [(2, 3), (3, 5), (5,), ()]))
    assert [message.written_by_all for message in transport.sent] == [0, 3, 5, 5, 0]
    member = transport.membership
    transport.shards, member.written = 2, {0: (0, (1, 4, 6, 8))}
    assert member.renewal(0, 0).written_by_all == 0, "nothing is known of shard 1"
    member.written[1] = 0, (4, 6, 7)
    assert member.renewal(1, 0).written_by_all == 6
    member.cuts.reset(5)
    assert member.renewal(1, 0).written_by_all == 0, "what is known is from before all shards went back"
    member.cuts.note(6, resets=0)
    assert member.renewal(1, 0).cut == 5, "this number too"
    member.cuts.note(6, resets=1)
    assert member.renewal(1, 0).cut == 6


def test_the_heartbeat_goes_on_after_temporary_errors_and_ends_after_others(caplog):
    script = (Unavailable("gone"), TimedOut("late"), NotJoined("slept"), ms.Renewed(waiting_for="w1"), Zombie("taken"))
    transport, logged = answered(caplog, *script)
    assert not transport.closing.is_set(), "it has ended by itself"
    assert logged == [
        ("INFO", "w0: heartbeat to shard 0: gone"),
        ("WARNING", "w0: heartbeat to shard 0: late"),
        ("INFO", "w0: heartbeat to shard 0: slept"),
        ("WARNING", "w0 waits, shard 0: w1"),
        ("INFO", "w0: heartbeat to shard 0: taken"),
    ]
    assert transport.membership.hold_reasons == {}, "discarded when a heartbeat fails"


@pytest.mark.parametrize(
    "answer",
    [ms.Joined(incarnation=1, lease=15.0, chief=True), ms.Renewed(chief=True), ms.Taken(chief=True)],
)
def test_chief_is_the_last_report_of_shard_0_but_no_older_heartbeat_and_taking_over_is_logged_once(answer, caplog):
    member = Scripted().membership
    for shard, report, chief in [
        (1, answer, False),
        (0, ms.Renewed(), False),
        (0, answer, True),
        (0, answer, True),
        (0, ms.Left(), True),
        (0, ms.Pushed(outcome=ms.Outcome.APPLIED, global_step=1), True),
        (1, replace(answer, chief=False), True),
        (0, ms.Renewed(), False),
    ]:
        member.update_chief(shard, report)
        assert member.chief == chief
    assert caplog.messages == ["w0 is now the chief: the previous one is gone"]
    asked = member.chief_reports
    member.update_chief(0, answer)
    for reports, chief in ((asked, True), (member.chief_reports, False)):  # a heartbeat's answer may be out of date
        member.update_chief(0, ms.Renewed(), reports)
        assert member.chief == chief


class Clock:
    """The time, which passes in pauses alone; also the event of a client that leaves `after` seconds."""

    def __init__(self, after):
        self.now, self.after = 0.0, after
        self.is_set = lambda: self.now >= after

    def wait(self, seconds):
        self.now += min(seconds, self.after - self.now)


def unreachable(monkeypatch, after=math.inf):
    """A transport to a shard that cannot be reached, `closing` a clock; pauses are of 0.5 to 2 s."""
    clock, transport = Clock(after), Scripted(*[Unavailable("cut off")] * 20)
    transport.calls.closing = clock
    monkeypatch.setattr(retry, "INITIAL_BACKOFF", 0.5)
    monkeypatch.setattr(retry, "MAX_BACKOFF", 2.0)
    monkeypatch.setattr(retry.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(retry.time, "sleep", clock.wait)
    return transport


def test_leaving_is_tried_again_for_two_seconds(monkeypatch, caplog):
    transport = unreachable(monkeypatch)
    with caplog.at_level(logging.INFO, "psworker.client"):
        assert transport.calls.call_best_effort(0, ms.Leave(ms.Sender("w0", 1)), "left without an answer") is None
    assert (transport.timeouts, transport.calls.closing.now) == ([2.0, 1.5, 0.5], 1.5)
    assert caplog.messages == ["worker w0, shard 0: left without an answer: cut off"]


ALL_TRIES = [10.0, 9.5, 8.5, 6.5, 4.5, 2.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("after", "answered", "text", "tries"),
    [
        (math.inf, -1.0, "gave up after 10.0 s: cut off", ALL_TRIES),  # held before the push
        (math.inf, math.inf, "gave up after 10.0 s: cut off: shard 0 held the push: w0 is slow", ALL_TRIES),
        (1.0, -1.0, "gave up after 1.0 s: cut off", [10.0, 9.5, 9.0]),  # the client leaves
    ],
)
def test_pauses_double_and_the_error_at_the_end_names_why_a_push_was_held(monkeypatch, after, answered, text, tries):
    transport = unreachable(monkeypatch, after)
    transport.membership.hold_reasons[0] = answered, "w0 is slow"
    with pytest.raises(Unavailable, match=f"^{text}$"):
        transport.calls.call(0, ms.Push(sender=ms.Sender("w0", 1), sequence=1), ms.Pushed)
    assert transport.timeouts == tries
