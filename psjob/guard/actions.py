"""What is done about findings of the guard, by choice: nothing but a warning, an end of the job, or going back.

Used by the launcher of local clusters, monitors and servers, each in the thread that asks for the status.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from psjob.guard import Finding, Guard
from psjob.status.interventions import InterventionCalls
from psjob.status.job_status import JobStatus
from psjob.terminal.guard_option import ACTING
from pswire.errors import ParamServerError
from pswire.security.credentials import Credentials

#: How often a job goes back, at most; then it is stopped.
MAX_ROLLBACKS = 3

log = logging.getLogger(__name__)


def log_finding(finding: Finding) -> None:
    """One line in the log, with cause and remedy."""
    log.warning("%s", finding.line)


def log_note(text: str) -> None:
    """A line about an action in the log."""
    log.warning("%s", text)


class GuardActions:
    """A guard, and what is done about its findings. Not thread-safe.

    Only findings of level "error" are acted on. With "rollback" all shards go back to the newest checkpoint from before
    the finding, if the variables were harmed, and the remedy that can be applied by itself is applied: a smaller
    learning rate, or quarantine of the worker. Where that fails, where the failure comes again after `MAX_ROLLBACKS`
    times, and where the last worker would be put into quarantine, the job is stopped with the reason.

    Args:
        mode: "warn", "stop" or "rollback".
        interventions: for "stop" and "rollback".
        report: is called with each finding once, when it opens.
        note: is called with a line about each action.
        stopped: is called with the reason when the job was stopped, or could not be.
        guard: by default one with the usual patience.
    """

    def __init__(
        self,
        mode: str,
        interventions: InterventionCalls | None = None,
        *,
        report: Callable[[Finding], object] = log_finding,
        note: Callable[[str], object] = log_note,
        stopped: Callable[[str], object] = bool,
        guard: Guard | None = None,
    ) -> None:
        self._mode, self._interventions, self._guard = mode, interventions, guard or Guard()
        self._report, self._note, self._stopped = report, note, stopped
        self._job = 0  # its number
        self._rollbacks = 0  # of this job
        self._ended = False

    @property
    def findings(self) -> list[Finding]:
        """Those that are open now."""
        return self._guard.findings

    def observe(self, job: JobStatus, seconds: float, *, last: bool = False) -> list[Finding]:
        """Take the status of the job at this time, and act; the findings that open with it. Raises nothing.

        The `last` status is that of a job that has failed: findings are only reported.
        """
        number = job.jobs[-1].job.number if job.jobs else self._job
        if number != self._job:
            self._job, self._rollbacks, self._ended = number, 0, False
        opened = self._guard.observe(job, seconds, last=last)
        for finding in opened:
            self._report(finding)
        if last:
            return opened
        errors = [one for one in opened if one.level == "error"]
        if errors and self._interventions is not None and not self._ended and not job.stopped:
            self._act(min(errors, key=lambda one: one.step), job, self._interventions)
        return opened

    def _act(self, finding: Finding, job: JobStatus, interventions: InterventionCalls) -> None:
        if self._mode == "rollback":
            try:
                self._go_back(finding, job, interventions)
            except ParamServerError as error:
                self._stop(f"going back failed, {error}: {finding.line}", interventions)
        elif self._mode == "stop":
            self._stop(finding.line, interventions)

    def _go_back(self, finding: Finding, job: JobStatus, interventions: InterventionCalls) -> None:
        reason = finding.text
        if finding.quarantine and not _others(job, finding.worker):
            last = f"worker {finding.worker!r} is the last one, and is not put into quarantine"
            self._stop(f"{last}: {finding.line}", interventions)
            return
        if finding.harmed:
            if self._rollbacks >= MAX_ROLLBACKS:
                self._stop(f"going back {MAX_ROLLBACKS} times has not helped: {finding.line}", interventions)
                return
            if finding.quarantine:  # until then its pushes would spoil the state to which the shards go back
                interventions.quarantine(finding.worker, reason)
            cut = interventions.roll_back(finding.step)
            self._rollbacks += 1
            self._note(f"guard: all shards went back to checkpoint {cut:,}, because {reason}")
            self._guard.forget()
        if finding.quarantine:
            interventions.quarantine(finding.worker, reason)
            self._note(f"guard: pushes of worker {finding.worker!r} are dropped from now on")
        if finding.scale_learning_rate != 1.0:
            interventions.scale_learning_rates(finding.scale_learning_rate, reason)
            self._note(f"guard: all learning rates were multiplied by {finding.scale_learning_rate:.4g}")

    def _stop(self, reason: str, interventions: InterventionCalls) -> None:
        self._ended = True
        try:
            interventions.stop(reason)
        except ParamServerError as error:
            self._note(f"guard: the job could not be stopped: {error}")
        self._stopped(reason)


@contextmanager
def guarding(
    mode: str,
    addresses: Sequence[str],
    credentials: Credentials,
    *,
    report: Callable[[Finding], object] = log_finding,
    note: Callable[[str], object] = log_note,
    stopped: Callable[[str], object] = bool,
) -> Iterator[GuardActions | None]:
    """The guard of the job whose servers are at these addresses, in a block; None if its mode is "off".

    To act it needs credentials of an admin. The functions are those of `GuardActions`.
    """
    if mode == "off":
        yield None
        return
    acting = InterventionCalls(addresses, "guard", credentials) if mode in ACTING else nullcontext()
    with acting as interventions:
        yield GuardActions(mode, interventions, report=report, note=note, stopped=stopped)


def _others(job: JobStatus, worker: str) -> list[str]:
    """The other workers, whose pushes are applied."""
    return [one.name for one in job.workers if one.name != worker and one.state == "live" and not one.quarantined]
