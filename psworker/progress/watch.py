"""A thread that asks for the status of a job again and again, and shows its progress."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pswire.status.job_status import JobStatus
from psworker.progress.progress import Progress, follow, starting

#: Seconds that a request may take.
TIMEOUT = 2.0


class Watch:
    """Asks for the status again and again in a thread, and shows the progress after each. A context manager.

    `ask` gets a timeout in seconds, and returns the status of the job; `show` is called in the thread. Neither may
    raise. `names` are workers that are expected to join. `interval`: seconds between two requests.
    """

    def __init__(
        self,
        ask: Callable[[float], JobStatus],
        show: Callable[[Progress], None],
        names: Sequence[str] = (),
        *,
        interval: float,
    ) -> None:
        self._ask, self._show, self._interval = ask, show, interval
        self._begin = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="psworker-progress", daemon=True)
        self.progress = starting(names)

    def __enter__(self) -> "Watch":
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(failed=kind is not None)

    def start(self) -> None:
        """Ask once, before anything is trained, and begin to ask in the thread."""
        self._follow()
        self._thread.start()

    def close(self, *, failed: bool) -> None:
        """End the thread, after a request under way; unless the job has `failed`, ask once more."""
        self._stop.set()
        self._thread.join()
        if not failed:
            self._follow()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._follow()
            if not self._stop.is_set():
                self._show(self.progress)

    def _follow(self) -> None:
        job = self._ask(TIMEOUT)
        seconds = time.monotonic() - self._begin
        problem = next((answer.problem for answer in job.answers if answer.report is None), "")
        if problem:
            self.progress = replace(self.progress, seconds=seconds, problem=problem)
        else:
            self.progress = follow(self.progress, job, seconds)
