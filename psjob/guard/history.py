"""The history of a job, as far as rules look back: a bounded number of moments, and what came before in a few numbers.

Costs are those of batches, so a moment has the moving averages that shards keep for each worker, and their median.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from psjob.status.job_status import JobStatus, JobWorker
from pswire.optimizers import OptimizerSpec
from pswire.specs.schedules import rate

#: Moments that are kept, and the seconds between two of them at least.
MAX_MOMENTS, INTERVAL = 120, 0.9

#: Updates of a job that counts as begun just now.
FRESH = 1000

#: A cost has fallen when it is below this part of the first one.
FALLEN = 0.7

#: A cost has grown when it reached this multiple of the first one.
GREW = 1.3

#: A cost below this part of the first one is that of a job that has converged.
CONVERGED = 0.05

#: Moments of which the median is the cost of a time.
SMOOTHED = 5


@dataclass(frozen=True, slots=True)
class Moment:
    """The job at a time, in seconds. `workers` are by name; `cost` is the median of those in training, None before."""

    seconds: float
    job: JobStatus
    workers: dict[str, JobWorker]
    cost: float | None

    @property
    def training(self) -> list[JobWorker]:
        """The live workers that push."""
        return [one for one in self.workers.values() if one.state == "live" and one.training]

    @property
    def gradient(self) -> float:
        """The median of the moving averages of gradients of those in training; 0 if there are none."""
        return _median([one.gradient_mean for one in self.training]) or 0.0


class History:
    """Moments in order, the last one is the present.

    Attributes:
        first: the median of the workers' first losses, when they were first seen; None before.
        first_gradient: the median of the workers' gradients then.
        fresh: that was near the beginning of the job, so these are losses of untrained variables.
        highest_gradient: the highest median of the workers' gradients.
        known_errors: by worker, the time of its last refused call before the job went back.
        lowest: the lowest smoothed cost since then, and `lowest_step` the global step of it.
        jobs: how often another job began, as that of the next session of a program.
    """

    def __init__(self) -> None:
        self.first: float | None = None
        self.fresh, self.jobs = False, 0
        self.first_gradient = self.highest_gradient = 0.0
        self.known_errors: dict[str, float] = {}
        self.moments: deque[Moment] = deque(maxlen=MAX_MOMENTS)
        self.forget()

    def forget(self) -> None:
        """Forget all moments; not the first cost, and not which refused calls were known."""
        if self.moments:
            self.known_errors = {one.name: one.error_time for one in self.now.workers.values()}
        self.moments.clear()
        self.lowest: float | None = None
        self.lowest_step = 0

    def add(self, job: JobStatus, seconds: float, *, at_once: bool = False) -> bool:
        """Add a status, unless shards are missing or the last moment is too near; whether there is a new moment.

        `at_once`: however near it is.
        """
        if not job.answers or any(answer.report is None for answer in job.answers):
            return False
        workers = {worker.name: worker for worker in job.workers}
        moment = Moment(seconds, job, workers, None)
        moment = replace(moment, cost=_median([one.cost for one in moment.training]))
        self._notice_restart(job)
        first = None if self.first is not None else _median([one.first_loss for one in moment.training])
        if first is not None and math.isfinite(first):
            self.first, self.fresh = first, job.global_step <= FRESH
            self.first_gradient = moment.gradient
        if self.moments and seconds - self.moments[-1].seconds < INTERVAL and not at_once:
            return False
        self.moments.append(moment)
        self.highest_gradient = max(self.highest_gradient, moment.gradient)
        cost = self.cost()
        if cost is not None and math.isfinite(cost) and (self.lowest is None or cost < self.lowest):
            self.lowest, self.lowest_step = cost, job.global_step
        return True

    def _notice_restart(self, job: JobStatus) -> None:
        """Forget the moments of another job, or of what was given up when all shards went back to a checkpoint."""
        if not self.moments:
            return
        before = self.moments[-1].job
        if job.jobs and before.jobs and job.jobs[-1].job.number != before.jobs[-1].job.number:
            self.first, self.highest_gradient = None, 0.0
            self.jobs += 1
            self.forget()
        elif job.global_step < before.global_step:
            self.forget()

    @property
    def peak(self) -> float | None:
        """The highest cost of the workers in training, the median of them; None before there is one."""
        return _median([one.peak_cost for one in self.now.training])

    def others(self, name: str) -> list[JobWorker]:
        """The other workers with pushes that were applied since the first moment, but for those in quarantine."""
        first = self.moments[0] if len(self.moments) > 1 else None
        present = [one for one in self.now.workers.values() if one.name != name and not one.quarantined]
        return [one for one in present if (pushed(first, one) if first is not None else one.steps)]

    @property
    def now(self) -> Moment:
        """The last moment."""
        return self.moments[-1]

    def cost(self) -> float | None:
        """The smoothed cost now; None before there is one."""
        return _median([moment.cost for moment in list(self.moments)[-SMOOTHED:]])

    def cost_until(self, moment: Moment) -> float | None:
        """The smoothed cost at a moment; None before there is one."""
        return _median([one.cost for one in self.moments if one.seconds <= moment.seconds][-SMOOTHED:])

    def window(self, seconds: float, pushes: int = 0) -> Moment | None:
        """The latest moment at least `seconds` ago and `pushes` of each worker ago; None if there is none.

        A worker that was not there then, or as another process, counts from 0.
        """
        for moment in reversed(self.moments):
            if self.now.seconds - moment.seconds >= seconds and all(
                pushed(moment, worker) >= pushes for worker in self.now.training
            ):
                return moment
        return None


def pushed(since: Moment, worker: JobWorker) -> int:
    """The pushes of a worker since a moment."""
    before = since.workers.get(worker.name)
    return worker.steps - (before.steps if before is not None and before.incarnation == worker.incarnation else 0)


def optimizers(job: JobStatus) -> list[OptimizerSpec]:
    """The optimizers of all variables that have one."""
    return [variable.optimizer for variable in job.variables if isinstance(variable.optimizer, OptimizerSpec)]


def learning_rate(job: JobStatus) -> float:
    """The largest learning rate of any variable at the present step; 0 if there are none."""
    return max([rate(one.learning_rate, job.global_step) for one in optimizers(job)], default=0.0)


def _median(costs: Sequence[float | None]) -> float | None:
    """The median; infinite if more than half are not finite, None if there are no costs."""
    known = [one if math.isfinite(one) else math.inf for one in costs if one is not None]
    return statistics.median_low(known) if known else None
