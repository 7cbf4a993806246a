"""The convergence guard of a local cluster: shows and records its findings, and tells the main thread of a stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from pswire.guard import Finding
from pswire.guard.actions import GuardActions
from pswire.security.credentials import Credentials
from pswire.status.interventions import Interventions
from pswire.status.job_status import JobStatus
from pswire.terminal.guard_option import ACTING
from psworker.launch.display.dashboard import Note

#: The exit code of a job that the guard has stopped; seconds that its workers have then for their end.
GUARD_CODE, GUARD_GRACE = 3, 10.0


class Guarding(ExitStack):
    """The guard of one job; its methods are called in the thread that asks for the status. A context manager.

    `show` shows a line, `record` adds a text with its level to the events of the run, and `stopped` gets the reason.
    """

    def __init__(
        self,
        mode: str,
        addresses: Sequence[str],
        credentials: Credentials,
        *,
        show: Callable[[Note], None],
        record: Callable[[str, str, str], None],
        stopped: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._show, self._record = show, record
        acts = mode in ACTING
        interventions = self.enter_context(Interventions(addresses, "guard", credentials)) if acts else None
        self._actions = GuardActions(mode, interventions, report=self._report, note=self._note, stopped=stopped)
        self._begin = time.monotonic()

    def observe(self, status: JobStatus, *, last: bool = False) -> None:
        """Check a new status; the `last` one is of a job that has failed."""
        self._actions.observe(status, time.monotonic() - self._begin, last=last)

    def _report(self, finding: Finding) -> None:
        self._record(finding.line, finding.level, finding.worker)
        self._show(Note(f"psworker: guard: {finding.line} (docs/guard.md, {finding.kind})", warning=True))

    def _note(self, text: str) -> None:
        self._record(text, "warning", "")
        self._show(Note(f"psworker: {text}", warning=True))
