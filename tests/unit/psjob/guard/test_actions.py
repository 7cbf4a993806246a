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


LESS = "it rises. Remedy: try less"
NO_CHECKPOINT = f"going back failed, there is no checkpoint: {LESS}"
WENT_BACK = "guard: all shards went back to checkpoint {}, because it {}".format
SLOWER, APART = (
    "guard: all learning rates were multiplied by 0.25",
    "guard: pushes of worker 'w1' are dropped from now on",
)
NOT_STOPPED = "guard: the job could not be stopped: there is no checkpoint"
QUARANTINE = "quarantine", "w1", "it jumps"
#: What to do, the findings, what servers refuse; interventions, the lines about them, reasons of a stop.
ACTED = {
    "a warning changes nothing": ("warn", [RATE, JUMP, ROUNDING], (), [], [], []),
    "the job is stopped once": ("stop", [ROUNDING, RATE, JUMP], (), [("stop", LESS)], [], [LESS]),
    "back, and a smaller rate": (
        *("rollback", [RATE], (), [("back", 40), ("scale", 0.25, "it rises")], [WENT_BACK(39, "rises"), SLOWER], []),
    ),
    # before: it must not spoil the restored state; after: the restored shards know nothing of it
    "quarantine before and after": (
        *("rollback", [JUMP], (), [QUARANTINE, ("back", 70), QUARANTINE], [WENT_BACK(69, "jumps"), APART], []),
    ),
    "no reason to go back": ("rollback", [NAN, ROUNDING], (), [("quarantine", "w1", "it is NaN")], [APART], []),
    "no checkpoint": ("rollback", [RATE], ("back",), [("stop", NO_CHECKPOINT)], [], [NO_CHECKPOINT]),
    "a silent server": ("stop", [RATE], ("stop",), [], [NOT_STOPPED], [LESS]),
}


@pytest.mark.parametrize(("mode", "findings", "failing", "calls", "notes", "stopped"), ACTED.values(), ids=ACTED)
def test_a_finding_is_told_or_ends_the_job_or_sends_it_back_with_the_remedy(
    mode, findings, failing, calls, notes, stopped
):
    assert acted(mode, *findings, failing=failing) == (calls, notes, stopped)


@pytest.mark.parametrize("others", [{"state": "left"}, {"state": "lost"}, {"quarantined": True}])
@pytest.mark.parametrize("finding", [JUMP, NAN])
def test_the_last_worker_is_not_put_into_quarantine_and_the_job_is_stopped_with_the_reason(finding, others):
    rows = workers(3, 10)
    status = job(0, [rows[1], *[replace(one, **others) for one in (rows[0], rows[2])]])
    calls, _, stopped = acted("rollback", finding, status=status)
    assert calls == [("stop", stopped[0])]
    assert stopped == [f"worker 'w1' is the last one, and is not put into quarantine: {finding.line}"]


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


def test_a_job_that_was_stopped_already_is_left_alone():
    servers = Servers()
    actions = GuardActions("stop", servers, guard=Scripted(RATE), report=bool)
    actions.observe(job(0, [], stopped="w0: done"), 0.0)
    assert servers.calls == []
