"""The status of a job, merged from the reports of its shards: whole variables, workers, and problems. Pure."""

import itertools
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from pswire.messages import (
    Change,
    EpochReport,
    JobReport,
    LastPush,
    MinimizationStatus,
    QueueStatus,
    StatusReport,
    VariableStatus,
    WorkerStatus,
)
from pswire.optimizers import UpdateSpec
from pswire.tensors.values import TensorSpec, whole_spec

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class ShardAnswer:
    """The report of the shard at `address`, or the problem that explains why there is none."""

    address: str
    report: StatusReport | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class JobVariable:
    """A variable, merged from its partitions; `spec` has the shape of the whole.

    `versions` and `updates` are those of the partitions, in the order of their `shards`; `nbytes`,
    `sampled` and `unchanged` are sums.
    """

    spec: TensorSpec
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    updates: tuple[int, ...]
    optimizer: UpdateSpec | None
    slots: tuple[str, ...]
    nbytes: int
    table: bool
    sampled: int = 0
    unchanged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWorker(WorkerStatus):
    """A worker as all shards report it (`_merged`); "starting" before it joins.

    `mean_staleness` is over its pushes to all shards, None before the first.
    """

    mean_staleness: float | None = None

    @property
    def lease(self) -> float | None:
        """Seconds until its lease expires; None if it is not live, or if that is not known."""
        return self.lease_left if self.state == "live" and math.isfinite(self.lease_left) else None


def starting(name: str) -> JobWorker:
    """A worker that has not joined."""
    return JobWorker(name=name, state="starting")


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one moment, as far as its shards answer; `problems` lists missing shards and inconsistencies.

    `global_step` and `dropped` are those of the shard with the most, since shard 0 gets every push; `repeated` and
    `nbytes` are sums. `half_pushes` counts pushes that only some shards have applied: those reported by workers, and
    those interrupted by the death of a worker. `lost_pushes` were acknowledged, and given up when all shards went back
    to a checkpoint: those of the shard with the most, as far as their workers have reported them. `jobs` of these
    servers, the present one last, and why that was `stopped`, are those of the first shard that answers. `omitted` says
    of which lists shards have reported a part; a variable is listed if all shards that answer have listed their parts.
    """

    answers: tuple[ShardAnswer, ...]
    shards: int
    global_step: int
    repeated: int
    dropped: int
    half_pushes: int
    lost_pushes: int
    nbytes: int
    consistency: str
    handling: str
    variables: tuple[JobVariable, ...]
    workers: tuple[JobWorker, ...]
    epochs: tuple[EpochReport, ...]
    changes: tuple[Change, ...]
    queues: tuple[QueueStatus, ...]
    jobs: tuple[JobReport, ...]
    stopped: str
    problems: tuple[str, ...]
    omitted: tuple[str, ...] = ()
    minimizations: tuple[MinimizationStatus, ...] = ()


def merge_reports(answers: Sequence[ShardAnswer]) -> JobStatus:
    """The status of the job, whatever the order of the answers; of two reports of one shard the first counts."""
    by_shard = {answer.report.shard: answer.report for answer in reversed(answers) if answer.report is not None}
    reports = [by_shard[shard] for shard in sorted(by_shard)]
    return JobStatus(
        answers=tuple(answers),
        shards=max((report.shards for report in reports), default=len(answers)),
        global_step=max((report.global_step for report in reports), default=0),
        repeated=sum(report.repeated for report in reports),
        dropped=max((report.dropped for report in reports), default=0),
        half_pushes=sum(report.half_pushes for report in reports) + _interrupted_pushes(by_shard),
        lost_pushes=max((report.storage.lost_pushes for report in reports), default=0),
        nbytes=sum(report.nbytes for report in reports),
        consistency=" or ".join(_distinct(report.consistency for report in reports)),
        handling=" or ".join(_distinct(report.handling for report in reports)),
        variables=_variables(reports),
        workers=_workers(reports),
        epochs=tuple(epoch for report in reports for epoch in report.epochs),
        changes=_changes(reports),
        queues=tuple(queue for report in reports for queue in report.queues),
        jobs=reports[0].jobs if reports else (),
        stopped=reports[0].stopped if reports else "",
        problems=tuple(_problems(answers)),
        omitted=tuple(_omitted(reports)),
        minimizations=tuple(one for report in reports for one in report.minimizations),
    )


def _distinct(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """The values of each key, in order."""
    groups: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _omitted(reports: Sequence[StatusReport]) -> Iterable[str]:
    for report in reports:
        totals = report.totals
        for what, listed, total in (
            ("variables", len(report.variables), totals.variables),
            ("workers", len(report.workers), totals.workers),
            ("data queues", len(report.queues), totals.queues),
        ):
            if listed < total:
                yield f"shard {report.shard} lists {listed:,} of {total:,} {what}"


def _variables(reports: Sequence[StatusReport]) -> tuple[JobVariable, ...]:
    parts = _grouped((one.spec.name, (report.shard, one)) for report in reports for one in report.variables)
    if any(len(report.variables) < report.totals.variables for report in reports):
        parts = {name: mine for name, mine in parts.items() if _is_whole([one for _, one in mine])}
    return tuple(_variable(*zip(*partitions, strict=True)) for partitions in parts.values())


def _is_whole(variables: Sequence[VariableStatus]) -> bool:
    """True if these partitions make up the whole variable."""
    part = variables[0].part
    return part is None or sum([one.spec.shape[0] for one in variables]) == part.of


def _variable(shards: tuple[int, ...], variables: tuple[VariableStatus, ...]) -> JobVariable:
    first = variables[0]
    return JobVariable(
        spec=whole_spec(first.spec, first.part),
        shards=shards,
        versions=tuple(variable.version for variable in variables),
        updates=tuple(variable.updates for variable in variables),
        optimizer=first.optimizer,
        slots=first.slots,
        nbytes=sum(variable.nbytes for variable in variables),
        table=first.table,
        sampled=sum(variable.sampled for variable in variables),
        unchanged=sum(variable.unchanged for variable in variables),
    )


def mean_staleness(workers: Iterable[JobWorker], before: Iterable[JobWorker] = ()) -> float | None:
    """The mean staleness of the pushes of these workers, or of those since an earlier status; None if there are none.

    A worker that was not there `before`, or as another process, counts from its first push.
    """
    known = {(worker.name, worker.incarnation): worker for worker in before}
    pushes, total = 0, 0.0
    for worker in workers:
        pushes += worker.steps
        total += (worker.mean_staleness or 0.0) * worker.steps
        earlier = known.get((worker.name, worker.incarnation))
        if earlier is not None:
            pushes -= earlier.steps
            total -= (earlier.mean_staleness or 0.0) * earlier.steps
    return max(0.0, total / pushes) if pushes > 0 else None


#: States of a worker, the best first: that of the job is the worst that a shard reports.
_STATES = ("live", "left", "lost")

#: How fields of `WorkerStatus` are merged; others, such as counts, are the largest of any shard.
_FIRST = ("loss", "cost", "first_loss", "waiting_for", "drop_reason")  # of the first shard that has them
_LEAST = ("lease_left", "empty")
_JOINED = ("tensor_transport", "encoding")  # may differ between shards
_OF_LAST_ERROR, _OF_MOST_JUMPS = ("error", "error_time"), ("jumps", "jump", "jumped_at")


def _workers(reports: Sequence[StatusReport]) -> tuple[JobWorker, ...]:
    by_name = _grouped((worker.name, worker) for report in reports for worker in report.workers)
    return tuple(sorted(map(_worker, by_name.values()), key=lambda worker: (worker.number, worker.name)))


def _worker(statuses: list[WorkerStatus]) -> JobWorker:
    incarnation = max(one.incarnation for one in statuses)
    now = [one for one in statuses if one.incarnation == incarnation]  # a shard may know only an earlier incarnation
    pushes = sum(one.steps for one in now)
    return JobWorker(
        **{field.name: _merged(field.name, now) for field in fields(WorkerStatus)},
        mean_staleness=sum(one.staleness_sum for one in now) / pushes if pushes else None,
    )


def _merged(name: str, shards: Sequence[WorkerStatus]) -> Any:  # noqa: ANN401 - of all types
    """The value of a field, of those in the reports of the shards."""
    if name in _OF_LAST_ERROR:
        return getattr(max(shards, key=lambda one: one.error_time), name)
    if name in _OF_MOST_JUMPS:
        return getattr(max(shards, key=lambda one: one.jumps), name)
    values = [value for one in shards if (value := getattr(one, name)) is not None]
    if name in _FIRST:
        return next(filter(lambda value: value != "", values), "" if values else None)
    if name in _JOINED:
        return " and ".join(_distinct(filter(None, values)))
    if name == "state":
        return max(values, key=_STATES.index)
    return (min if name in _LEAST else max)(values, default=None)


def _interrupted_pushes(reports: Mapping[int, StatusReport]) -> int:
    """Incarnations of workers that ended with a push that not all of its shards have applied: each has one at most.

    The push of a live worker may be under way. Shards that do not answer are not counted.
    """
    workers = [worker for report in reports.values() for worker in report.workers]
    live = {(worker.name, worker.incarnation) for worker in workers if worker.state == "live"}
    last_pushes = _grouped(
        ((push.worker, push.incarnation), (shard, push)) for shard in reports for push in reports[shard].last_pushes
    )
    return sum(_is_half(dict(pushes), reports) for worker, pushes in last_pushes.items() if worker not in live)


def _is_half(pushes: Mapping[int, LastPush], shards: Container[int]) -> bool:
    last = max((push for push in pushes.values() if push.shards), key=lambda push: push.sequence, default=None)
    if last is None:
        return False
    reached = {shard: push.sequence for shard, push in pushes.items()}
    return any(shard in shards and reached.get(shard, 0) < last.sequence for shard in (0, *last.shards))


def _changes(reports: Sequence[StatusReport]) -> tuple[Change, ...]:
    """In the order of their steps; the reports of several shards about one change are merged."""
    changes = [change for report in reports for change in report.changes]
    same = _grouped(((one.global_step, one.worker, one.optimizer), one) for one in changes)
    return tuple(
        Change(
            global_step=step,
            worker=worker,
            names=_distinct(itertools.chain(*[one.names for one in same[step, worker, optimizer]])),
            optimizer=optimizer,
            others=sum([one.others for one in same[step, worker, optimizer]]),
        )
        for step, worker, optimizer in sorted(same, key=lambda key: key[0])
    )


def _problems(answers: Sequence[ShardAnswer]) -> Iterable[str]:
    yield from (answer.problem for answer in answers if answer.report is None)
    known = [(answer.address, answer.report) for answer in answers if answer.report is not None]
    listed = ", ".join(f"{address} is shard {report.shard} of {report.shards}" for address, report in known)
    sizes, shards = {report.shards for _, report in known}, [report.shard for _, report in known]
    if len(sizes) > 1:
        yield f"these servers belong to different jobs: {listed}"
        return
    if len(set(shards)) < len(shards):
        yield f"a shard is listed twice: {listed}"
    elif sizes and len(answers) < max(sizes):
        yield f"this is not the whole job: it has {max(sizes)} shards, and {len(answers)} of their addresses are given"
    elif any(answer.report is not None and answer.report.shard != place for place, answer in enumerate(answers)):
        yield f"workers must name the servers in the order of their shards, but the order is different: {listed}"
    for option, values in (
        ("--consistency", {report.consistency for _, report in known}),
        ("--staleness", {report.handling for _, report in known}),
    ):
        if len(values) > 1:
            yield f"all servers of a job need the same {option}; these have {' and '.join(sorted(values))}"
    for address, report in known:
        if report.exposure:
            yield f"shard {report.shard} at {address}: {report.exposure}"
        if report.storage.problem:
            yield f"shard {report.shard} at {address}: {report.storage.problem}"
    without = [address for address, report in known if not report.storage.folder]
    if 0 < len(without) < len(known):
        yield f"some servers keep checkpoints, and these do not: {', '.join(without)}"
    if len({report.storage.timeline for _, report in known}) > 1:
        yield "the shards follow different timelines: they go back to a common checkpoint as soon as a worker joins"
