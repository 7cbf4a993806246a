"""The progress of a running job: its status, requested a few times a second, and rates over time.

`follow` is pure and does the arithmetic; `Watch` is the thread that requests the status.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pswire.job_status import JobStatus, JobWorker
from pswire.status_client import StatusClient

#: Seconds between two requests, and the timeout of one.
INTERVAL, TIMEOUT = 0.25, 2.0
#: Time constants, in seconds, of the moving averages of rates and of costs, which are of single batches.
RATE_SMOOTHING, COST_SMOOTHING = 1.0, 0.5


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """One worker now: its status, its recent steps per second, and the recent mean of its losses, None before one."""

    status: JobWorker
    rate: float = 0.0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The job now: its workers, ordered by name, and the global step.

    `seconds` count since the workers were started; the step was last seen at 0 when it `began`, and to increase when it
    `advanced`. `problem` says why there is no newer status; empty when there is.
    """

    workers: tuple[WorkerProgress, ...]
    seconds: float = 0.0
    step: int = 0
    began: float = 0.0
    advanced: float = 0.0
    problem: str = ""


def starting(names: Sequence[str]) -> Progress:
    """The progress before these workers have joined."""
    return Progress(tuple(WorkerProgress(JobWorker(name)) for name in names))


def follow(before: Progress, job: JobStatus, seconds: float) -> Progress:
    """The progress when the job has this status at `seconds`."""
    elapsed = seconds - before.seconds
    workers = {worker.status.name: worker for worker in before.workers}
    for status in job.workers:
        worker = workers.get(status.name, WorkerProgress(JobWorker(status.name)))
        workers[status.name] = _follow_worker(worker, status, elapsed)
    return Progress(
        workers=tuple(workers[name] for name in sorted(workers, key=lambda name: (len(name), name))),  # 9 before 10
        seconds=seconds,
        step=job.global_step,
        began=before.began if job.global_step else seconds,
        advanced=before.advanced if job.global_step == before.step else seconds,
    )


def _follow_worker(before: WorkerProgress, status: JobWorker, elapsed: float) -> WorkerProgress:
    rate = max(0, status.steps - before.status.steps) / elapsed if elapsed > 0 else before.rate
    return WorkerProgress(
        status,
        _smoothed(before.rate or None, rate, elapsed / RATE_SMOOTHING) if status.state == "live" else 0.0,
        before.cost if status.loss is None else _smoothed(before.cost, status.loss, elapsed / COST_SMOOTHING),
    )


def _smoothed(before: float | None, now: float, elapsed: float) -> float:
    """An exponential moving average over unevenly spaced moments, `elapsed` time constants after the last one."""
    return now if before is None else before + (now - before) * -math.expm1(-elapsed)


class Watch:
    """Asks for the status again and again in a thread, and shows the progress after each. A context manager.

    The `client` of the shards is closed at the end. `show` is called in the thread, and must not raise.
    """

    def __init__(self, client: StatusClient, names: Sequence[str], show: Callable[[Progress], None]) -> None:
        self._client, self._show = client, show
        self._begin = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self.progress = starting(names)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End the thread; without an error, ask once more for the final progress."""
        self._stop.set()
        self._thread.join()
        with self._client:
            if kind is None:
                self._ask()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._ask()
            self._show(self.progress)

    def _ask(self) -> None:
        job = self._client.ask(TIMEOUT)
        seconds = time.monotonic() - self._begin
        problem = next((answer.problem for answer in job.answers if answer.report is None), "")
        if problem:
            self.progress = replace(self.progress, seconds=seconds, problem=problem)
        else:
            self.progress = follow(self.progress, job, seconds)
