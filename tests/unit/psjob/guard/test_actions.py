"""What is done about findings: nothing but a line, an end of the job, or going back and the remedy."""

from dataclasses import replace

import pytest

from psjob.guard import Finding
from psjob.guard import actions as guard_actions
from psjob.guard.actions import GuardActions
from pswire.errors import StorageError
from pswire.messages import Job, JobReport
from tests.unit.psjob.guard.jobs import job, workers

RATE = Finding("staleness", "error", "", "it rises", "try less", step=40, scale_learning_rate=0.25, harmed=True)
JUMP = Finding("worker", "error", "w1", "it jumps", "look", step=70, quarantine=True, harmed=True)
NAN = Finding("worker", "error", "w1", "it is NaN", "look", step=70, quarantine=True)
ROUNDING = Finding("rounding", "warning", "", "they vanish", "float32")


class Scripted:
    """A guard that finds these, one status after the other."""

    def __init__(self, *findings):
        self.findings, self._left, self.forgotten = [], list(findings), 0

    def observe(self, status, seconds, *, last=False):
        self.findings = [self._left.pop(0)] if self._left else []
        return self.findings

    def forget(self):
        self.forgotten += 1


class Servers:
    """Notes the interventions, and refuses those of `failing`."""

    def __init__(self, failing=()):
        self.calls, self._failing = [], failing

    def _note(self, *call):
        if call[0] in self._failing:
            raise StorageError("there is no checkpoint")
        self.calls.append(call)

    def stop(self, reason):
        self._note("stop", reason)

    def quarantine(self, worker, reason):
        self._note("quarantine", worker, reason)

    def scale_learning_rates(self, factor, reason):
        self._note("scale", factor, reason)

    def roll_back(self, step):
        self._note("back", step)
        return step - 1


def acted(mode, *findings, failing=(), status=None):
    """The interventions, the lines about them, and the reasons of a stop."""
    servers, notes, stopped, reported = Servers(failing), [], [], []
    actions = GuardActions(
        mode, servers, report=reported.append, note=notes.append, stopped=stopped.append, guard=Scripted(*findings)
    )
    for second in range(len(findings) + 1):
        actions.observe(status or job(0, workers(3, 10)), float(second))
    assert reported == list(findings), "each once"
    return servers.calls, notes, stopped


def test_a_warning_changes_nothing():
    assert acted("warn", RATE, JUMP, ROUNDING) == ([], [], [])


def test_the_job_is_stopped_once_with_cause_and_remedy():
    calls, _, stopped = acted("stop", ROUNDING, RATE, JUMP)
    assert calls == [("stop", "it rises. Remedy: try less")]
    assert stopped == ["it rises. Remedy: try less"]


def test_going_back_is_to_before_the_finding_and_applies_the_smaller_rate():
    calls, notes, stopped = acted("rollback", RATE)
    assert calls == [("back", 40), ("scale", 0.25, "it rises")]
    assert notes[0] == "guard: all shards went back to checkpoint 39, because it rises"
    assert stopped == []


def test_a_worker_is_in_quarantine_before_and_after_going_back():
    """Before: it must not spoil the restored state. After: the restored shards know nothing of it."""
    calls, _, _ = acted("rollback", JUMP)
    assert calls == [("quarantine", "w1", "it jumps"), ("back", 70), ("quarantine", "w1", "it jumps")]


@pytest.mark.parametrize("others", [{"state": "left"}, {"state": "lost"}, {"quarantined": True}])
@pytest.mark.parametrize("finding", [JUMP, NAN])
def test_the_last_worker_is_not_put_into_quarantine_and_the_job_is_stopped_with_the_reason(finding, others):
    rows = workers(3, 10)
    status = job(0, [rows[1], *[replace(one, **others) for one in (rows[0], rows[2])]])
    calls, _, stopped = acted("rollback", finding, status=status)
    assert calls == [("stop", stopped[0])]
    assert stopped == [f"worker 'w1' is the last one, and is not put into quarantine: {finding.line}"]


def test_a_finding_that_has_changed_nothing_is_no_reason_to_go_back():
    assert acted("rollback", NAN, ROUNDING)[0] == [("quarantine", "w1", "it is NaN")]


def test_a_job_without_a_checkpoint_from_before_is_stopped_and_says_so():
    calls, _, stopped = acted("rollback", RATE, failing=("back",))
    assert calls == [("stop", stopped[0])]
    assert stopped == ["going back failed, there is no checkpoint: it rises. Remedy: try less"]


def test_a_job_goes_back_a_few_times_at_most(monkeypatch):
    monkeypatch.setattr(guard_actions, "MAX_ROLLBACKS", 2)
    calls, _, stopped = acted("rollback", RATE, RATE, RATE, RATE)
    assert [call[0] for call in calls] == ["back", "scale", "back", "scale", "stop"]
    assert stopped == ["going back 2 times has not helped: it rises. Remedy: try less"]


def test_the_next_job_is_stopped_and_goes_back_like_the_first(monkeypatch):
    monkeypatch.setattr(guard_actions, "MAX_ROLLBACKS", 1)
    servers, stopped = Servers(), []
    actions = GuardActions("rollback", servers, stopped=stopped.append, guard=Scripted(*[RATE] * 6))
    for number in (1, 1, 1, 2, 2, 2):
        status = replace(
            job(0, workers(3, 10)),
            jobs=(JobReport(job=Job(number, "sweep-1", number), state="running", workers=3),),
        )
        actions.observe(status, 0.0)
    assert [call[0] for call in servers.calls] == ["back", "scale", "stop"] * 2
    assert len(stopped) == 2


def test_what_a_silent_server_cannot_be_told_is_told_to_people():
    calls, notes, stopped = acted("stop", RATE, failing=("stop",))
    assert (calls, notes) == ([], ["guard: the job could not be stopped: there is no checkpoint"])
    assert len(stopped) == 1


def test_a_job_that_was_stopped_already_is_left_alone():
    servers = Servers()
    actions = GuardActions("stop", servers, guard=Scripted(RATE), report=bool)
    actions.observe(job(0, [], stopped="w0: done"), 0.0)
    assert servers.calls == []
