"""The reports of a job's shards, put together: whole variables, workers as the job sees them, and what is amiss.

Pure. May import pswire's pure half.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pswire.messages import Change, EpochReport, LastPush, StatusReport, VariableStatus, WorkerStatus
from pswire.optimizers import UpdateSpec
from pswire.tensors.values import TensorSpec


@dataclass(frozen=True, slots=True)
class ShardAnswer:
    """What came from `address`: a report, or the problem why there is none."""

    address: str
    report: StatusReport | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class JobVariable:
    """A variable, of one shard or put together of its parts; `spec` has the shape of the whole.

    `versions` and `updates` are those of the parts, in the order of their `shards`, and `nbytes` is the sum.
    `global_step` is that of the job, by which a schedule gives the next learning rate.
    """

    spec: TensorSpec
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    updates: tuple[int, ...]
    optimizer: UpdateSpec | None
    slots: tuple[str, ...]
    nbytes: int
    table: bool
    global_step: int


@dataclass(frozen=True, slots=True)
class JobWorker:
    """A worker. What it does goes to several shards: its counts are those of the shard that has seen the most.

    `state` is the worst that a shard says, "lost" before "left" before "live"; `lease_left` the least, in seconds, None
    unless it is live. `mean_staleness` is over its pushes to all shards, None before the first. `tensor_transport` is
    how its tensors travel; to several shards it may be several ways. Whether it is the `chief`, shard 0 knows.
    """

    name: str
    number: int
    incarnation: int
    state: str
    steps: int
    dropped: int
    mean_staleness: float | None
    loss: float | None
    epoch: int
    lease_left: float | None
    waiting_for: str
    tensor_transport: str
    chief: bool = False


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job at one moment, as far as its shards answer; `problems` says what is missing or does not fit.

    `global_step` and `dropped` are those of the shard with the most, since shard 0 gets every push; `repeated` and
    `nbytes` are sums. `half_pushes` counts pushes that some shards have applied and others not: those that workers
    report, and those that the death of a worker left so.
    """

    answers: tuple[ShardAnswer, ...]
    shards: int
    global_step: int
    repeated: int
    dropped: int
    half_pushes: int
    nbytes: int
    consistency: str
    handling: str
    variables: tuple[JobVariable, ...]
    workers: tuple[JobWorker, ...]
    epochs: tuple[EpochReport, ...]
    changes: tuple[Change, ...]
    problems: tuple[str, ...]


def put_together(answers: Sequence[ShardAnswer]) -> JobReport:
    """One report of all, whatever their order; of two that say to be the same shard the first counts."""
    by_shard = {answer.report.shard: answer.report for answer in reversed(answers) if answer.report is not None}
    reports = [by_shard[shard] for shard in sorted(by_shard)]
    global_step = max((report.global_step for report in reports), default=0)
    return JobReport(
        answers=tuple(answers),
        shards=max((report.shards for report in reports), default=len(answers)),
        global_step=global_step,
        repeated=sum(report.repeated for report in reports),
        dropped=max((report.dropped for report in reports), default=0),
        half_pushes=sum(report.half_pushes for report in reports) + _left_half(by_shard),
        nbytes=sum(report.nbytes for report in reports),
        consistency=" or ".join(_each_once(report.consistency for report in reports)),
        handling=" or ".join(_each_once(report.handling for report in reports)),
        variables=_variables(reports, global_step),
        workers=_workers(reports),
        epochs=tuple(epoch for report in reports for epoch in report.epochs),
        changes=_changes(reports),
        problems=tuple(_problems(answers)),
    )


def _each_once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


# --- variables --------------------------------------------------------------------------------------------------------


def _variables(reports: Sequence[StatusReport], global_step: int) -> tuple[JobVariable, ...]:
    parts: dict[str, list[tuple[StatusReport, VariableStatus]]] = {}
    for report in reports:
        for variable in report.variables:
            parts.setdefault(variable.spec.name, []).append((report, variable))
    return tuple(_whole(found, global_step) for found in parts.values())


def _whole(parts: list[tuple[StatusReport, VariableStatus]], global_step: int) -> JobVariable:
    _, first = parts[0]
    variables = [variable for _, variable in parts]
    return JobVariable(
        spec=_whole_spec(first),
        shards=tuple(report.shard for report, _ in parts),
        versions=tuple(variable.version for variable in variables),
        updates=tuple(variable.updates for variable in variables),
        optimizer=first.optimizer,
        slots=first.slots,
        nbytes=sum(variable.nbytes for variable in variables),
        table=first.table,
        global_step=global_step,
    )


def _whole_spec(variable: VariableStatus) -> TensorSpec:
    if variable.part is None:
        return variable.spec
    return TensorSpec(variable.spec.name, (variable.part.of, *variable.spec.shape[1:]), variable.spec.dtype)


# --- workers ----------------------------------------------------------------------------------------------------------

_BEST_TO_WORST = ("live", "left", "lost")


def _workers(reports: Sequence[StatusReport]) -> tuple[JobWorker, ...]:
    seen: dict[str, list[WorkerStatus]] = {}
    for report in reports:
        for worker in report.workers:
            seen.setdefault(worker.name, []).append(worker)
    return tuple(sorted(map(_worker, seen.values()), key=lambda worker: (worker.number, worker.name)))


def _worker(seen: list[WorkerStatus]) -> JobWorker:
    incarnation = max(one.incarnation for one in seen)
    now = [one for one in seen if one.incarnation == incarnation]  # a shard may know only a life before this one
    state = max((one.state for one in now), key=_BEST_TO_WORST.index)
    pushes = sum(one.steps for one in now)
    return JobWorker(
        name=now[0].name,
        number=seen[0].number,
        incarnation=incarnation,
        state=state,
        steps=max(one.steps for one in now),
        dropped=max(one.dropped for one in now),
        mean_staleness=sum(one.staleness_sum for one in now) / pushes if pushes else None,
        loss=next((one.loss for one in now if one.loss is not None), None),
        epoch=max(one.epoch for one in now),
        lease_left=min(one.lease_left for one in now) if state == "live" else None,
        waiting_for=next((one.waiting_for for one in now if one.waiting_for), ""),
        tensor_transport=" and ".join(_each_once(one.tensor_transport for one in now if one.tensor_transport)),
        chief=any(one.chief for one in now),
    )


# --- half pushes ------------------------------------------------------------------------------------------------------


def _left_half(reports: Mapping[int, StatusReport]) -> int:
    """Lives of workers that have ended with a push that not all of its shards have applied: each has one at most.

    Of a worker that lives it may be under way. A shard that does not answer is not looked at.
    """
    live = {
        (worker.name, worker.incarnation)
        for report in reports.values()
        for worker in report.workers
        if worker.state == "live"
    }
    lives: dict[tuple[str, int], dict[int, LastPush]] = {}
    for shard, report in reports.items():
        for push in report.last_pushes:
            lives.setdefault((push.worker, push.incarnation), {})[shard] = push
    return sum(_is_half(pushes, reports) for life, pushes in lives.items() if life not in live)


def _is_half(pushes: Mapping[int, LastPush], shards: Container[int]) -> bool:
    last = max((push for push in pushes.values() if push.shards), key=lambda push: push.sequence, default=None)
    if last is None:
        return False
    reached = {shard: push.sequence for shard, push in pushes.items()}
    return any(shard in shards and reached.get(shard, 0) < last.sequence for shard in (0, *last.shards))


# --- changes and problems ---------------------------------------------------------------------------------------------


def _changes(reports: Sequence[StatusReport]) -> tuple[Change, ...]:
    """In the order of their steps; what several shards say of one change is one change."""
    names: dict[tuple[int, str, UpdateSpec], list[str]] = {}
    for report in reports:
        for change in report.changes:
            names.setdefault((change.global_step, change.worker, change.optimizer), []).extend(change.names)
    return tuple(
        Change(step, worker, _each_once(names[step, worker, optimizer]), optimizer)
        for step, worker, optimizer in sorted(names, key=lambda key: key[0])
    )


def _problems(answers: Sequence[ShardAnswer]) -> Iterable[str]:
    yield from (answer.problem for answer in answers if answer.report is None)
    known = [(answer.address, answer.report) for answer in answers if answer.report is not None]
    who = ", ".join(f"{address} is shard {report.shard} of {report.shards}" for address, report in known)
    sizes, shards = {report.shards for _, report in known}, [report.shard for _, report in known]
    if len(sizes) > 1:
        yield f"these servers are not of one job: {who}"
        return
    if len(set(shards)) < len(shards):
        yield f"a shard is named twice: {who}"
    elif sizes and len(answers) < max(sizes):
        yield f"this is not the whole job: it has {max(sizes)} shards, and {len(answers)} of their addresses are given"
    elif any(answer.report is not None and answer.report.shard != place for place, answer in enumerate(answers)):
        yield f"workers must name the servers in the order of their shards, and this is another: {who}"
    for option, values in (
        ("--consistency", {report.consistency for _, report in known}),
        ("--staleness", {report.handling for _, report in known}),
    ):
        if len(values) > 1:
            yield f"all servers of a job need the same {option}, these have {' and '.join(sorted(values))}"
