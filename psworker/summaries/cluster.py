"""Scalars of the whole job, from its status: while this worker is chief, a thread asks for it again and again."""

import threading
import time
from collections.abc import Callable

from pswire.optimizers import OptimizerSpec
from pswire.specs.schedules import rate
from pswire.status.job_status import JobStatus, mean_staleness
from psworker.summaries.recorder import SHARE_OF_AGE, TRAINING

#: Seconds between two requests for the status at least, over which a rate is shown at least, and for one request.
INTERVAL, SHORTEST_RATE, TIMEOUT = 2.0, 1.0, 2.0


def cluster_values(before: JobStatus | None, now: JobStatus, seconds: float) -> dict[str, float | None]:
    """Scalars of the job by tag, of the `seconds` since the status `before`; None where there is no value.

    The cost is the mean over the live workers, the staleness that of the pushes in between, over all workers; the
    learning rate is that of the first variable that is trained, as the servers have it.
    """
    live = [worker for worker in now.workers if worker.state == "live"]
    costs = [worker.cost for worker in live if worker.cost is not None]
    steps = None if before is None or seconds < SHORTEST_RATE else (now.global_step - before.global_step) / seconds
    return {
        f"{TRAINING}/loss": sum(costs) / len(costs) if costs else None,
        f"{TRAINING}/steps_per_second": None if steps is None else max(0.0, steps),
        f"{TRAINING}/staleness": mean_staleness(now.workers, before.workers if before else ()),
        f"{TRAINING}/dropped": now.dropped,
        f"{TRAINING}/learning_rate": _learning_rate(now),
        f"{TRAINING}/live_workers": len(live),
    }


def _learning_rate(job: JobStatus) -> float | None:
    for variable in job.variables:
        if isinstance(variable.optimizer, OptimizerSpec):
            return rate(variable.optimizer.learning_rate, job.global_step)
    return None


class ClusterWatch:
    """A thread that asks for the status of the job again and again while this worker `is_chief`.

    Every `INTERVAL` seconds, and later as rarely as there are points of a worker (`psworker.summaries.recorder`). `ask`
    gets a timeout in seconds, and `show` the status, and the scalars since the one before; neither may raise.
    Both are called in the thread, and in `close`.
    """

    def __init__(
        self,
        is_chief: Callable[[], bool],
        ask: Callable[[float], JobStatus],
        show: Callable[[JobStatus, dict[str, float | None]], None],
    ) -> None:
        self._is_chief, self._ask, self._show = is_chief, ask, show
        self._before: JobStatus | None = None
        self._began = self._seconds = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="psworker-cluster-summaries", daemon=True)
        self._thread.start()

    def close(self, *, failed: bool) -> None:
        """End the thread, after a request under way; unless the session has `failed`, ask once more."""
        self._stop.set()
        self._thread.join()
        if not failed:
            self._follow()

    def _run(self) -> None:
        while not self._stop.wait(max(INTERVAL, (time.monotonic() - self._began) * SHARE_OF_AGE)):
            self._follow()

    def _follow(self) -> None:
        if not self._is_chief():
            self._before = None
            return
        job, now = self._ask(TIMEOUT), time.monotonic()
        if any(answer.report is None for answer in job.answers):
            return  # rates of some shards would mislead
        self._show(job, cluster_values(self._before, job, now - self._seconds))
        self._before, self._seconds = job, now
