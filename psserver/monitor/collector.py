"""The collector: a thread that asks for the status of a job once a second, and keeps what the live page shows."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from psserver.monitor.history import Events, History
from psserver.monitor.samples import Known, last_reports, make_sample
from psserver.monitor.stream import SampleStream
from pswire.job_status import JobStatus

log = logging.getLogger(__name__)

#: Seconds between two samples, and for the answers of the shards; without a sample for so many the job is not ready.
INTERVAL, TIMEOUT, READY_SECONDS = 1.0, 3.0, 10.0

#: Findings of a guard that are shown, the newest ones.
MAX_FINDINGS = 100


class Finding(Protocol):
    """What a guard has found: `pswire.guard.Finding`."""

    kind: str
    level: str
    worker: str
    text: str
    remedy: str


class Guard(Protocol):
    """Recognises failures of training: `pswire.guard.Guard`."""

    def observe(self, job: JobStatus, seconds: float) -> Sequence[Finding]:
        """The findings that are new or have changed."""


class Collector:
    """Collects within a block; `samples` is the stream of what it has found.

    Args:
        ask: the status of the job, with details, from all shards that answer within some seconds.
        cancel: ends a call of `ask`, at the end of the block.
        guard: observes each status; its findings enter the samples.

    Only its thread writes; `_lock` guards what others read, and `status` is replaced as a whole.

    Attributes:
        status: the last one; None before the first.
    """

    def __init__(
        self,
        ask: Callable[[float], JobStatus],
        cancel: Callable[[], object] = bool,
        *,
        guard: Guard | None = None,
    ) -> None:
        self._ask, self._cancel, self._guard = ask, cancel, guard
        self.samples = SampleStream()
        self.status: JobStatus | None = None
        self._lock = threading.Lock()
        self._history, self._events = History(), Events()
        self._findings: dict[tuple[str, str], dict[str, Any]] = {}
        self._latest: dict[str, Any] | None = None
        self._known: dict[int, Known] = {}
        self._number: int | None = None  # of the job
        self._began = self._last = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="psserver-monitor", daemon=True)

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self.samples.close()
        self._cancel()
        self._thread.join()

    def job(self) -> dict[str, Any]:
        """The JSON of `/api/job`: history, latest sample, all events, and findings."""
        with self._lock:
            return {
                "history": self._history.points(),
                "latest": self._latest,
                "events": self._events.all(),
                "findings": list(self._findings.values()),
            }

    def kinds(self) -> list[str] | None:
        """The kind of each finding; None without a guard."""
        with self._lock:
            return None if self._guard is None else [kind for kind, _ in self._findings]

    def problem(self) -> str:
        """Why the job is not ready: silent shards, or no sample for some time; "" if all shards answer."""
        with self._lock:
            latest, age = self._latest, time.monotonic() - self._last
        if latest is None or age > READY_SECONDS:
            return f"no status of the job for {age:.0f} s"
        return "; ".join([shard["problem"] for shard in latest["shards"] if shard["problem"]])

    def _run(self) -> None:
        due = time.monotonic()
        while not self._end.wait(max(0.0, due - time.monotonic())):
            due = max(due + INTERVAL, time.monotonic())
            try:
                self._collect()
            except Exception:
                if not self._end.is_set():
                    log.exception("the monitor failed on a status; it continues")

    def _collect(self) -> None:
        """Add one sample."""
        job = self._ask(TIMEOUT)
        at = time.monotonic()
        sample = make_sample(job, time.time(), at, self._known)
        known = last_reports(job, at, self._known)
        with self._lock:
            if (number := _number(sample)) is not None:
                if self._number not in (None, number):
                    self._history = History()  # that was of another job
                self._number = number
            sample["findings"] = self._observe(job, at)
            sample["events"] = self._events.add([one.report for one in job.answers if one.report is not None])
            self._history.add(sample, at - self._last)
            self._known, self._latest, self._last, self.status = known, sample, at, job
        self.samples.publish(sample)

    def _observe(self, job: JobStatus, at: float) -> list[dict[str, Any]]:
        """All findings, after the guard has seen this status."""
        for found in self._guard.observe(job, at - self._began) if self._guard is not None else ():
            key = found.kind, found.worker
            since = self._findings.get(key, {"since": time.time()})["since"]
            self._findings.pop(key, None)
            self._findings[key] = {
                "kind": found.kind,
                "level": found.level,
                "worker": found.worker,
                "text": found.text,
                "remedy": found.remedy,
                "since": since,
            }
            while len(self._findings) > MAX_FINDINGS:
                del self._findings[next(iter(self._findings))]
        return list(self._findings.values())


def _number(sample: dict[str, Any]) -> int | None:
    """The number of the job of a sample; None if no shard has answered."""
    return None if sample["job"] is None else sample["job"]["number"]
