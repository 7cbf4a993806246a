"""The guard: asks all rules about the history of a job, and tells findings once, when they have lasted.

A finding opens when its rule has found it for some seconds without a break, and closes when the rule has not for
longer. So a cost that goes up and down neither opens nor closes it again and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psjob.guard.finding import Finding
from psjob.guard.history import History
from psjob.guard.rules import data, momentum, rate, rounding, staleness, worker
from psjob.status.job_status import JobStatus

#: Seconds for which a finding must have lasted, by kind, and without evidence before it closes.
OPENS_AFTER = {"staleness": 3.0, "momentum": 3.0, "rate": 0.0, "worker": 0.0, "data": 0.0, "rounding": 5.0}
CLOSES_AFTER = 15.0

#: Findings that are open at a time; further ones wait.
MAX_OPEN = 50


@dataclass(slots=True)
class _Evidence:
    """What a rule has found since `since`, and again at `last`; it is open from `opened` on."""

    finding: Finding
    since: float
    last: float
    opened: bool = False


class Guard:
    """The guard of one job after another. Not thread-safe; pure: it tells what it finds, and does nothing.

    Args:
        patience: seconds without pushes, or with useless ones, after which a worker's data counts as gone.
    """

    def __init__(self, patience: float = 30.0) -> None:
        self._patience = patience
        self._history = History()
        self._evidence: dict[tuple[str, str], _Evidence] = {}

    @property
    def findings(self) -> list[Finding]:
        """Those that are open now, in the order in which they opened."""
        return [one.finding for one in self._evidence.values() if one.opened]

    def forget(self) -> None:
        """Close all findings: the job has gone back to before them."""
        self._evidence.clear()
        self._history.forget()

    def observe(self, job: JobStatus, seconds: float, *, last: bool = False) -> list[Finding]:
        """Take the status of the job at this time; the findings that open with it.

        For the `last` status of a job that has failed, findings need not last.
        """
        jobs = self._history.jobs
        if not self._history.add(job, seconds, at_once=last):
            return []
        if self._history.jobs != jobs:  # what was found was of the job before
            self._evidence.clear()
        for key, one in list(self._evidence.items()):
            if seconds - one.last >= (CLOSES_AFTER if one.opened else OPENS_AFTER[one.finding.kind]):
                del self._evidence[key]
        opened = []
        for found in self._found():
            key = found.kind, found.worker
            one = self._evidence.setdefault(key, _Evidence(found, seconds, seconds))
            one.last = seconds
            lasted = last or seconds - one.since >= OPENS_AFTER[found.kind]
            if one.opened or not lasted or len(self.findings) >= MAX_OPEN:
                continue
            one.finding, one.opened = found, True
            opened.append(found)
        return opened

    def _found(self) -> Iterator[Finding]:
        history = self._history
        if not history.now.training and not history.now.workers:
            return
        certain = list(worker.findings(history)) or list(rate.findings(history))
        yield from certain
        if not certain:  # which would explain it
            yield from staleness.findings(history)
            yield from momentum.findings(history)
        yield from data.findings(history, self._patience)
        yield from rounding.findings(history)
