"""The collector: asks for the status of a job once a second, and keeps what the live page shows."""

import threading
import time
from collections.abc import Callable
from typing import Any

from psjob.guard import Guard
from psjob.guard.actions import GuardActions
from psjob.status.job_status import JobStatus
from psjob.status.job_view import JobView
from psjob.status.poller import Poller
from psserver.monitor.history import Events, History
from psserver.monitor.json_text import array, encode_in_parts, joined
from psserver.monitor.sample_stream import SampleStream
from psserver.monitor.samples import make_sample

#: Seconds between two samples; for the answers of the shards; and without a sample until the job counts as not ready.
INTERVAL, TIMEOUT, READY_SECONDS = 1.0, 3.0, 10.0


class Collector:
    """Collects within a block; `samples` is the stream of what it has found.

    Args:
        ask: the status of the job, with details, from all shards that answer within some seconds.
        cancel: ends a call of `ask`, at the end of the block.
        guard: observes each status; its findings enter the samples.

    Only the thread of its poller writes; `_lock` guards what others read.
    """

    def __init__(
        self,
        ask: Callable[[float], JobStatus],
        cancel: Callable[[], object] = bool,
        *,
        guard: Guard | GuardActions | None = None,
    ) -> None:
        self._guard = guard
        self.samples = SampleStream()
        self._poller = Poller(ask, self._collect, interval=INTERVAL, timeout=TIMEOUT, cancel=cancel)
        self._lock = threading.Lock()
        self._history, self._events = History(), Events()
        self._findings: dict[tuple[str, str], dict[str, Any]] = {}
        self._latest: dict[str, Any] | None = None
        self._number: int | None = None  # of the job
        self._last = time.monotonic()  # when the last sample was made
        self._added = 0.0  # seconds of the last view in the history

    def __enter__(self) -> "Collector":
        self._poller.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.samples.close()
        self._poller.close(failed=True)

    @property
    def status(self) -> JobStatus | None:
        """The last status; None before the first."""
        return self._poller.view.latest

    def job(self) -> str:
        """The JSON of `/api/job`: history, latest sample, all events, and findings."""
        with self._lock:
            points, latest, events = self._history.points(), self._latest, self._events.all()
        rest = {"latest": latest, "events": events, "findings": [] if latest is None else latest["findings"]}
        return joined({"history": array(points), **{name: encode_in_parts(value) for name, value in rest.items()}})

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

    def _collect(self, view: JobView) -> None:
        """Add the sample of a view."""
        job = view.latest
        assert job is not None
        sample = make_sample(view, time.time())
        findings = self._observe(job, view.seconds)  # without the lock: a guard that acts calls servers
        with self._lock:
            if (number := _number(sample)) is not None:
                if self._number not in (None, number):
                    self._history = History()  # that was of another job
                self._number = number
                self._history.add(sample, view.seconds - self._added)
                self._added = view.seconds
            sample["findings"] = findings
            sample["events"] = self._events.add([one.report for one in job.answers if one.report is not None])
            self._latest, self._last = sample, time.monotonic()
        self.samples.publish(sample)

    def _observe(self, job: JobStatus, seconds: float) -> list[dict[str, Any]]:
        """The present findings of the guard, after it has seen this status."""
        if self._guard is None:
            return []
        self._guard.observe(job, seconds)
        before, now = self._findings, time.time()
        self._findings = {  # a new one: others may be reading the last
            (one.kind, one.worker): {
                "kind": one.kind,
                "level": one.level,
                "worker": one.worker,
                "text": one.text,
                "remedy": one.remedy,
                "since": before.get((one.kind, one.worker), {"since": now})["since"],
            }
            for one in self._guard.findings
        }
        return list(self._findings.values())


def _number(sample: dict[str, Any]) -> int | None:
    """The number of the job of a sample; None if no shard has answered."""
    return None if sample["job"] is None else sample["job"]["number"]
