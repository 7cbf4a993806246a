"""A job at a moment, as all displays show it: its status, its rates in the last seconds, how much is left. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from psjob.status.job_status import JobStatus, JobWorker, starting
from psjob.status.shard_rates import Reports, ShardRates, WorkerPushes, with_reports
from pswire.messages import EventReport, MinimizationStatus, QueueStatus

#: Newest events of the job that are kept.
MOST_EVENTS = 4
#: Seconds of the past that are kept, the fewest from which the rest is estimated, and between two points of it.
PAST, SHORTEST_PAST, PAST_INTERVAL = 30.0, 3.0, 1.0


@dataclass(frozen=True, slots=True)
class Point:
    """A moment of the past: the global step, positions that are done by data queue, and costs by worker."""

    seconds: float
    step: int
    done: Mapping[str, int]
    costs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class JobView:
    """A job now. `JobView(names)` is that before these workers have joined, and before the first status.

    When the servers begin another job, such as that of the program's next session, all begins anew but `seconds` and
    `events`.

    Attributes:
        names: workers that are expected.
        seconds: the time of the status, from the beginning.
        latest: the status, from the shards that have answered; None before the first.
        problem: why a shard has not answered; "" if all have.
        job: the last status of all shards, from which what follows is; None before the first.
        workers: those of the job, and those expected, in the order of their names.
        reports: those of the last seconds, by shard.
        rates: of the shards that have answered now and before.
        earlier: workers that had left or were lost at the first status, by name and incarnation: of a job that is
            resumed.
        first: the global step at the first status, None before: a job that is resumed, or joined, does not begin at 0.
        began, advanced: when the step was last seen at `first`, and when it increased last.
        past: points of the last `PAST` seconds, the oldest first.
        events: the newest ones, the last one first, as of the last status with details.
    """

    names: Sequence[str] = ()
    seconds: float = 0.0
    latest: JobStatus | None = None
    problem: str = ""
    job: JobStatus | None = None
    workers: tuple[JobWorker, ...] = field(default=())
    reports: Reports = field(default_factory=dict)
    rates: Mapping[int, ShardRates] = field(default_factory=dict)
    earlier: frozenset[tuple[str, int]] = frozenset()
    first: int | None = None
    began: float = 0.0
    advanced: float = 0.0
    past: tuple[Point, ...] = ()
    events: tuple[EventReport, ...] = ()

    def __post_init__(self) -> None:
        """Add the workers that are expected."""
        known = {one.name for one in self.workers}
        missing = [starting(name) for name in self.names if name not in known]
        workers = sorted([*self.workers, *missing], key=lambda one: (len(one.name), one.name))  # 9 before 10
        object.__setattr__(self, "workers", tuple(workers))

    def follow(self, job: JobStatus, seconds: float) -> "JobView":
        """The view when the job has this status at `seconds`."""
        if self.job is not None and 0 < _number(self.job) != _number(job) > 0:
            return self._of_next_job().follow(job, seconds)
        found = [answer.report for answer in job.answers if answer.report is not None]
        problem = next((answer.problem for answer in job.answers if answer.report is None), "")
        reports = with_reports(self.reports, found, seconds)
        rates = {one.shard: ShardRates(reports[one.shard]) for one in found if len(reports[one.shard]) > 1}
        now = replace(self, seconds=seconds, latest=job, problem=problem, reports=reports, rates=rates)
        if problem:
            return now
        first = job.global_step if self.first is None else min(self.first, job.global_step)
        return replace(
            now,
            job=job,
            workers=job.workers,
            earlier=_gone(job) if self.job is None else self.earlier,
            first=first,
            began=seconds if job.global_step == first else self.began,
            advanced=self.advanced if job.global_step == self.step else seconds,
            past=_past(self.past if job.global_step > first else (), job, seconds),  # not before workers have begun
            events=_newest_events(job) or self.events,
        )

    def _of_next_job(self) -> "JobView":
        """The view of a job that has begun since, of which the same workers are expected."""
        seconds = self.seconds
        return JobView(self.names, seconds, first=0, began=seconds, advanced=seconds, events=self.events)

    @property
    def taking_part(self) -> list[JobWorker]:
        """The workers since the first status, and those expected."""
        return [
            one for one in self.workers if (one.name, one.incarnation) not in self.earlier or one.name in self.names
        ]

    # --- rates --------------------------------------------------------------------------------------------------------

    @property
    def steps_per_second(self) -> float | None:
        """Updates per second; None if that is not known."""
        return max([rate for one in self.rates.values() if (rate := one.steps()) is not None], default=None)

    @property
    def staleness(self) -> float | None:
        """The mean staleness of the pushes of all workers in the last seconds; None without one."""
        found = [one for worker in self.workers for one in self.pushes(worker)]
        return mean_of(found)

    def steps_per_second_of(self, worker: JobWorker) -> float | None:
        """Pushes of a worker per second; None if that is not known."""
        return max([one.rate for one in self.pushes(worker) if one.rate is not None], default=None)

    def pushes(self, worker: JobWorker) -> list[WorkerPushes]:
        """The pushes of a worker in the last seconds, on each shard where that is known."""
        found = [one.worker(worker.name, worker.incarnation) for one in self.rates.values()]
        return [one for one in found if one is not None]

    # --- how much is left ---------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The global step."""
        return 0 if self.job is None else self.job.global_step

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
        """The data queue being read: the least advanced one that is not at its end, else the last one."""
        queues = () if self.job is None else self.job.queues
        open_ones = [queue for queue in queues if queue.done != queue.spec.total]
        return min(open_ones, key=_fraction, default=queues[-1] if queues else None)

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
        """Seconds until the data queue is at its end, at the rate of the last `PAST` seconds.

        None without evidence: before `SHORTEST_PAST`, while nothing advances, for a queue without an end, and for a
        program that reads one queue after the other, since it is not known how many will follow.
        """
        found = self._evidence()
        return None if found is None else found[0] / found[1] * (self.seconds - found[2].seconds)

    @property
    def total_steps(self) -> float | None:
        """The global step at the end of the data queue, if batches go on as in the last part; None without evidence."""
        found = self._evidence()
        return None if found is None else self.step + found[0] / found[1] * (self.step - found[2].step)

    def _evidence(self) -> tuple[int, int, Point] | None:
        """Positions that are left, those done since a point of the past, and that point."""
        queue, queues = self.queue, () if self.job is None else self.job.queues
        if queue is None or queue.spec.total is None or any(one.done == one.spec.total for one in queues):
            return None
        since = next((point for point in self.past if point.done.get(queue.spec.name)), None)
        if since is None or self.seconds - since.seconds < SHORTEST_PAST:
            return None
        done = queue.done - since.done[queue.spec.name]
        return (queue.spec.total - queue.done, done, since) if done > 0 else None

    def costs(self, worker: JobWorker) -> list[float]:
        """The costs of a worker in the past, the oldest first."""
        return [point.costs[worker.name] for point in self.past if worker.name in point.costs]


def mean_of(pushes: Iterable[WorkerPushes]) -> float | None:
    """The mean staleness of pushes; None without one."""
    found = list(pushes)
    count = sum([one.pushes for one in found])
    return sum([one.staleness_sum for one in found]) / count if count else None


def _number(job: JobStatus) -> int:
    return job.jobs[-1].job.number if job.jobs else 0


def _gone(job: JobStatus) -> frozenset[tuple[str, int]]:
    return frozenset([(one.name, one.incarnation) for one in job.workers if one.state != "live"])


def _fraction(queue: QueueStatus) -> float:
    return queue.done / queue.spec.total if queue.spec.total else 0.0


def _newest_events(job: JobStatus) -> tuple[EventReport, ...]:
    """The newest events of all shards, latest first; an event that several shards report is listed once."""
    details = [answer.report.detail for answer in job.answers if answer.report is not None]
    events = [event for detail in details if detail is not None for event in detail.events[-4 * MOST_EVENTS :]]
    newest = {event.text: event for event in sorted(events, key=lambda event: event.time)}
    return tuple(sorted(newest.values(), key=lambda event: -event.time)[:MOST_EVENTS])


def _past(before: Sequence[Point], job: JobStatus, seconds: float) -> tuple[Point, ...]:
    """The points of the last seconds, with this moment if the last is long ago; none from before shards went back."""
    past = [one for one in before if seconds - one.seconds <= PAST]
    if past and job.global_step < past[-1].step:
        past = []
    if not past or seconds - past[-1].seconds >= PAST_INTERVAL:
        costs = {one.name: one.cost for one in job.workers if one.cost is not None}
        past.append(Point(seconds, job.global_step, {one.spec.name: one.done for one in job.queues}, costs))
    return tuple(past)
