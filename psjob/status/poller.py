"""The one poller of a job's status: asks again and again, in a thread or in the calling one, and tells listeners."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from psjob.status.job_status import JobStatus
from psjob.status.job_view import JobView

log = logging.getLogger(__name__)


class Poller:
    """Asks for the status of a job every `interval` seconds, and calls `show` with each view of the job.

    Both are called in one thread at a time: that of a block, between `start` and `close`, or the caller's in `poll`,
    `run` and `close`.

    Args:
        ask: takes a timeout in seconds, and returns the status of the job; None means not now: the view begins anew.
        show: is called after each status.
        interval: seconds between two requests.
        timeout: seconds for a request.
        names: workers that are expected to join.
        share: the least interval, as a share of the time since the beginning.
        cancel: ends a request under way, in `close`.

    Attributes:
        view: the last one.
    """

    def __init__(
        self,
        ask: Callable[[float], JobStatus | None],
        show: Callable[[JobView], object],
        *,
        interval: float,
        timeout: float = 2.0,
        names: Sequence[str] = (),
        share: float = 0.0,
        cancel: Callable[[], object] = bool,
    ) -> None:
        self._ask, self._show, self._cancel = ask, show, cancel
        self._interval, self._timeout, self._share, self._names = interval, timeout, share, names
        self._began = self._due = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job-status", daemon=True)
        self.view = JobView(names)

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(failed=kind is not None)

    def start(self) -> None:
        """Ask again and again in a thread, which logs errors and goes on."""
        self._thread.start()

    def close(self, *, failed: bool) -> None:
        """End the thread, after a request under way; unless the job has `failed`, ask once more."""
        self._ended.set()
        self._cancel()
        self._thread.join()
        if not failed:
            self.poll()

    def run(self) -> None:
        """Ask again and again in the calling thread, until an exception such as that of Ctrl-C."""
        while self._wait():
            self.poll()

    def poll(self) -> None:
        """Ask once, and show the view."""
        now = time.monotonic()
        self._due = max(now, self._due + max(self._interval, self._share * self.seconds))
        job = self._ask(self._timeout)
        if job is None:
            self.view = JobView(self._names)
            return
        self.view = self.view.follow(job, self.seconds)
        self._show(self.view)

    def _wait(self) -> bool:
        """Wait until the next request is due; whether there is to be one."""
        return not self._ended.wait(max(0.0, self._due - time.monotonic()))

    def _run(self) -> None:
        while self._wait():
            try:
                self.poll()
            except Exception:
                if not self._ended.is_set():
                    log.exception("a status of the job could not be shown; the next one is asked for")
