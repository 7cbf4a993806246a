"""The progress of a job: its status over time, with rates, and how much is left. Pure; times are in seconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pswire.messages import EventReport, MinimizationStatus, QueueStatus
from pswire.status.job_status import JobStatus, JobWorker

#: Time constants, in seconds, of the moving averages of rates and of costs, which are of single batches.
RATE_SMOOTHING, COST_SMOOTHING = 1.0, 0.5
#: Seconds between two points of a worker's recent costs, and how many points are kept.
COST_INTERVAL, COST_POINTS = 1.0, 24
#: Newest events of the job that are kept.
MOST_EVENTS = 4
#: Seconds of the past from which the rest is estimated, at most and at least, and between two of its moments.
LONGEST_PAST, SHORTEST_PAST, PAST_INTERVAL = 30.0, 3.0, 0.5


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """One worker now: its status, its recent steps per second, and the recent mean of its losses, None before one.

    `costs` are earlier values of `cost`, the oldest first, one each `COST_INTERVAL`; `noted`: when the last was.
    """

    status: JobWorker
    rate: float = 0.0
    cost: float | None = None
    costs: tuple[float, ...] = ()
    noted: float = -math.inf


@dataclass(frozen=True, slots=True)
class _Moment:
    """What was done at a moment: positions of a data queue, and steps."""

    seconds: float
    queue: str
    done: int
    step: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The job now: its workers, ordered by name, the global step, and its data queues.

    `seconds` count from the beginning. The step was `first` at the first status, None before one: a resumed job, or one
    that this process joins, does not begin at 0. It was last seen there when it `began`, and to increase when it
    `advanced`. `past` are moments of the last `LONGEST_PAST` seconds. `problem` says why there is no newer status;
    empty when there is. `job` is the last status, None before one; `events` are the
    newest ones, the last one first, as of the last status with a detail. When the servers have another job, such as
    that of the program's next session, all begins anew but `seconds` and `events`.
    """

    workers: tuple[WorkerProgress, ...] = ()
    seconds: float = 0.0
    step: int = 0
    first: int | None = None
    began: float = 0.0
    advanced: float = 0.0
    problem: str = ""
    queues: tuple[QueueStatus, ...] = ()
    past: tuple[_Moment, ...] = ()
    job: JobStatus | None = None
    events: tuple[EventReport, ...] = ()

    @property
    def steps(self) -> int:
        """Steps since the first status."""
        return self.step - (self.first or 0)

    @property
    def session(self) -> int:
        """The session of the program to which the job belongs, from 1; 0 if it is not known, or not numbered."""
        present = None if self.job is None else next(iter(self.job.jobs[-1:]), None)
        return 0 if present is None else present.job.session

    @property
    def queue(self) -> QueueStatus | None:
        """The data queue that is read: of those that are not at their end the least advanced one; else the last one."""
        open_ones = [queue for queue in self.queues if queue.done != queue.spec.total]
        return min(open_ones, key=_fraction, default=self.queues[-1] if self.queues else None)

    @property
    def minimization(self) -> MinimizationStatus | None:
        """The newest minimization, while it runs."""
        newest = self.job.minimizations[-1:] if self.job is not None else ()
        return next((one for one in newest if not one.end), None)

    @property
    def fraction(self) -> float | None:
        """The part of the data queue that is done, from 0 to 1; None without one, or if it has no end."""
        queue = self.queue
        return queue.done / queue.spec.total if queue is not None and queue.spec.total else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the data queue is at its end, at the rate of the last part of the run.

        None without evidence: before `SHORTEST_PAST`, while nothing advances, for a queue without an end, and for a
        program that reads one queue after the other, of which nobody knows how many will follow.
        """
        left, first, last = self._evidence()
        return left / (last.done - first.done) * (last.seconds - first.seconds) if left else None

    @property
    def total_steps(self) -> float | None:
        """The global step at the end of the data queue, if batches go on as in the last part; None without evidence."""
        left, first, last = self._evidence()
        return last.step + left / (last.done - first.done) * (last.step - first.step) if left else None

    def _evidence(self) -> tuple[int, _Moment, _Moment]:
        """Positions that are left, and two moments between which some were done; 0 if there is no evidence."""
        nothing = _Moment(0.0, "", 0, 0)
        queue = self.queue
        if queue is None or queue.spec.total is None or any(one.done == one.spec.total for one in self.queues):
            return 0, nothing, nothing
        past = [moment for moment in self.past if moment.queue == queue.spec.name]
        if not past or past[-1].seconds - past[0].seconds < SHORTEST_PAST or past[-1].done <= past[0].done:
            return 0, nothing, nothing
        return queue.spec.total - past[-1].done, past[0], past[-1]


def _fraction(queue: QueueStatus) -> float:
    return queue.done / queue.spec.total if queue.spec.total else 0.0


def starting(names: Sequence[str]) -> Progress:
    """The progress before these workers have joined."""
    return Progress(tuple(WorkerProgress(JobWorker(name)) for name in names))


def follow(before: Progress, job: JobStatus, seconds: float) -> Progress:
    """The progress when the job has this status at `seconds`."""
    if before.job is not None and 0 < _number(before.job) != _number(job):
        before = _of_next_job(before)
    elapsed = seconds - before.seconds
    workers = {worker.status.name: worker for worker in before.workers}
    for status in job.workers:
        worker = workers.get(status.name, WorkerProgress(JobWorker(status.name)))
        workers[status.name] = _follow_worker(worker, status, elapsed, seconds)
    first = job.global_step if before.first is None else min(before.first, job.global_step)
    now = Progress(
        workers=tuple(workers[name] for name in sorted(workers, key=lambda name: (len(name), name))),  # 9 before 10
        seconds=seconds,
        step=job.global_step,
        first=first,
        began=seconds if job.global_step == first else before.began,
        advanced=before.advanced if job.global_step == before.step else seconds,
        queues=job.queues,
        job=job,
        events=_newest_events(job) or before.events,
    )
    return replace(now, past=_past(before.past, now))


def _number(job: JobStatus) -> int:
    return job.jobs[-1].job.number if job.jobs else 0


def _of_next_job(before: Progress) -> Progress:
    """The progress of a job that has begun since, with the same workers."""
    seconds = before.seconds
    anew = starting([worker.status.name for worker in before.workers])
    return replace(anew, seconds=seconds, first=0, began=seconds, advanced=seconds, events=before.events)


def _newest_events(job: JobStatus) -> tuple[EventReport, ...]:
    """The newest events of all shards, the last one first; of those that several shards report alike, the newest."""
    details = [answer.report.detail for answer in job.answers if answer.report is not None]
    events = [event for detail in details if detail is not None for event in detail.events[-4 * MOST_EVENTS :]]
    newest = {event.text: event for event in sorted(events, key=lambda event: event.time)}
    return tuple(sorted(newest.values(), key=lambda event: -event.time)[:MOST_EVENTS])


def _past(before: tuple[_Moment, ...], now: Progress) -> tuple[_Moment, ...]:
    """The moments of the last seconds, with this one if the last is long ago; those of another queue are left out."""
    queue = now.queue
    if queue is None or not queue.done:
        return ()
    past = tuple([one for one in before if one.queue == queue.spec.name and now.seconds - one.seconds <= LONGEST_PAST])
    if past and (now.seconds - past[-1].seconds < PAST_INTERVAL or queue.done < past[-1].done):
        return past if queue.done >= past[-1].done else ()  # after all servers went back to a checkpoint
    return (*past, _Moment(now.seconds, queue.spec.name, queue.done, now.step))


def _follow_worker(before: WorkerProgress, status: JobWorker, elapsed: float, seconds: float) -> WorkerProgress:
    rate = max(0, status.steps - before.status.steps) / elapsed if elapsed > 0 else before.rate
    cost = before.cost if status.loss is None else _smoothed(before.cost, status.loss, elapsed / COST_SMOOTHING)
    now = WorkerProgress(
        status,
        _smoothed(before.rate or None, rate, elapsed / RATE_SMOOTHING) if status.state == "live" else 0.0,
        cost,
        before.costs,
        before.noted,
    )
    if cost is None or seconds - before.noted < COST_INTERVAL or status.steps == before.status.steps:
        return now
    return replace(now, costs=(*before.costs, cost)[-COST_POINTS:], noted=seconds)


def _smoothed(before: float | None, now: float, elapsed: float) -> float:
    """An exponential moving average over unevenly spaced moments, `elapsed` time constants after the last one."""
    return now if before is None else before + (now - before) * -math.expm1(-elapsed)
