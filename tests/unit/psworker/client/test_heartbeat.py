"""The heartbeat: logged reasons, temporary errors, and what it reports; and which worker is chief."""

import logging
import threading
import time
from dataclasses import replace

import pytest

from pswire.errors import NotJoined, TimedOut, Unavailable, Zombie
from pswire.messages import Joined, Left, Outcome, Pushed, Renew, Renewed, Sender, Taken
from psworker.client.heartbeat import Heartbeat
from psworker.client.retrying_calls import RetryingCalls
from psworker.transport import Future

start_heartbeat = Heartbeat.start


class Beats:
    """A heartbeat over a transport of one shard, which answers with a script; at its end `closing` is set."""

    shards = 1

    def __init__(self, *script):
        self.closing = threading.Event()
        self.calls = RetryingCalls(self, "w0", 60, self.closing)
        self.calls.sender = Sender("w0", 1)
        self.heartbeat = Heartbeat(self.calls)
        self._script = iter(script)
        self.sent = []

    def call(self, shard, message, timeout):
        self.sent.append(message)
        answer = next(self._script, None)
        if answer is None:
            self.closing.set()
            answer = Renewed(0, "the end")

        def result():
            if isinstance(answer, Exception):
                raise answer
            return answer

        return Future(result)

    def tensor_transport(self, shard):
        return f"transport {len(self.sent)}"

    def run(self):
        start_heartbeat(self.heartbeat, lease=0.003)
        self.heartbeat.join()
        return self


def test_the_reason_of_a_held_push_is_logged_when_it_appears_and_changes_and_the_last_is_kept_with_its_time(caplog):
    began = time.monotonic()
    script = ["", "w1 is at step 3", "w1 is at step 3", "w2 is at step 3", "", "w2 is at step 3"]
    beats = Beats(*(Renewed(1, reason) for reason in script)).run()
    reasons = ("w1 is at step 3", "w2 is at step 3", "w2 is at step 3", "the end")
    assert caplog.messages == [f"w0 waits, shard 0: {reason}" for reason in reasons]
    (answered, reason) = beats.calls.hold_reasons[0]
    assert began < answered < time.monotonic()
    assert reason == "the end"


@pytest.mark.parametrize("error", [NotJoined("slept"), Unavailable("gone"), TimedOut("late"), Zombie("taken")])
def test_a_reason_is_discarded_when_a_heartbeat_fails(error):
    beats = Beats(Renewed(1, "w1 is at step 3"), error, Zombie("so that it ends")).run()
    assert beats.calls.hold_reasons == {}


def test_the_heartbeat_goes_on_after_temporary_errors_and_ends_after_others(caplog):
    script = Unavailable("gone"), TimedOut("late"), NotJoined("slept"), Renewed(0, "w1"), Zombie("taken")
    with caplog.at_level(logging.INFO, "psworker.client.heartbeat"):
        beats = Beats(*script).run()
    assert not beats.closing.is_set(), "it has ended by itself"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "w0: heartbeat to shard 0: gone"),
        ("WARNING", "w0: heartbeat to shard 0: late"),
        ("INFO", "w0: heartbeat to shard 0: slept"),
        ("WARNING", "w0 waits, shard 0: w1"),
        ("INFO", "w0: heartbeat to shard 0: taken"),
    ]


def test_each_heartbeat_reports_the_tensor_transport_half_pushes_and_whether_the_worker_is_idle():
    beats = Beats(Renewed(0), Renewed(0))
    beats.calls.half_pushes[0] = 3
    beats.heartbeat.idle_since = 7
    assert beats.run().sent == [Renew(Sender("w0", 1), True, f"transport {n}", 7, 3) for n in range(3)]


@pytest.mark.parametrize("answer", [Joined(1, 0, 15.0, 0, chief=True), Renewed(0, chief=True), Taken(None, chief=True)])
def test_chief_is_the_last_report_of_shard_0_and_taking_over_is_logged_once(answer, caplog):
    calls = Beats().calls
    for shard, report, chief in [
        (1, answer, False),
        (0, Renewed(0), False),
        (0, answer, True),
        (0, answer, True),
        (0, Left(), True),
        (0, Pushed(Outcome.APPLIED, 0, 1), True),
        (1, replace(answer, chief=False), True),
        (0, Renewed(0), False),
    ]:
        calls.update_chief(shard, report)
        assert calls.chief == chief
    assert caplog.messages == ["w0 is now the chief: the previous one is gone"]


def test_a_heartbeat_answer_older_than_another_report_of_the_chief_is_ignored():
    calls = Beats().calls
    calls.update_chief(0, Joined(1, 1, 15.0, 0))
    asked = calls.chief_reports
    calls.update_chief(0, Taken(None, done=True, chief=True))
    calls.update_chief(0, Renewed(0), asked)
    assert calls.chief
    calls.update_chief(0, Renewed(0), calls.chief_reports)
    assert not calls.chief
