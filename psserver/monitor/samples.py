"""Samples: a view of a job as JSON data, for the live page. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from psjob.status.job_status import JobStatus, JobVariable, JobWorker, ShardAnswer
from psjob.status.job_view import JobView, mean_of
from psjob.status.shard_rates import Row, ShardRates
from psserver.core.updates.staleness import percentile
from pswire.messages import MinimizationStatus, StatusReport, VariableStatus
from pswire.specs.spec import to_plain

#: Largest number of cells of a matrix: all live workers, and as many variables as fit, the first ones.
MAX_CELLS = 20_000

#: Fields of a worker in a sample that are those of its status.
_OF_WORKER = (
    *("name", "number", "incarnation", "state", "chief", "steps", "cost", "mean_staleness", "dropped", "clipped"),
    *("epoch", "waiting_for", "held", "waited", "encoding", "gradient", "gradient_mean", "error", "error_time"),
    "drop_reason",
)

Json = dict[str, Any]


def make_sample(view: JobView, time: float) -> Json:
    """The sample of a status with details, without events and findings; `docs/observability.md` has its fields.

    `time` is in seconds since 1970.
    """
    job, rates = view.latest, view.rates
    assert job is not None
    present = job.jobs[-1] if job.jobs else None
    parts = {(report.shard, variable.spec.name): variable for report in _reports(job) for variable in report.variables}
    rows, columns = _rows(job, rates.values()), Row()
    for row in rows.values():
        _add(row, columns)
    return {
        "time": time,
        "step": job.global_step,
        "steps_per_second": _short(view.steps_per_second),
        "dropped": job.dropped,
        "repeated": job.repeated,
        "half_pushes": job.half_pushes,
        "lost_pushes": job.lost_pushes,
        "nbytes": job.nbytes,
        "consistency": job.consistency,
        "handling": job.handling,
        "stopped": job.stopped,
        "problems": [*job.problems, *job.omitted],
        "job": None if present is None else {**asdict(present.job), "state": present.state},
        "shards": [_shard(place, answer, rates) for place, answer in enumerate(job.answers)],
        "workers": [_worker(worker, view) for worker in job.workers],
        "variables": [
            {**_variable(variable, parts, rates), "staleness": _mean(columns.get(variable.spec.name))}
            for variable in job.variables
        ],
        "matrix": _matrix(job, rows),
        "queues": [
            {**asdict(queue.spec), "epoch": queue.epoch, "done": queue.done, "blocks_out": queue.blocks_out}
            for queue in job.queues
        ],
        "minimizations": [_minimization(one) for one in job.minimizations],
        "events": [],
        "findings": [],
    }


def _reports(job: JobStatus) -> list[StatusReport]:
    return [answer.report for answer in job.answers if answer.report is not None]


def _shard(place: int, answer: ShardAnswer, rates: Mapping[int, ShardRates]) -> Json:
    """A shard; null for all that is not known of a silent one."""
    report = answer.report
    changes = None if report is None else rates.get(report.shard)
    counts = None if changes is None else changes.stalenesses()
    last = None if changes is None else changes.last().stalenesses()
    bytes_in, bytes_out = (None, None) if changes is None else changes.traffic()
    pushes = None if changes is None or counts is None else changes.rate(_total(counts))
    return {
        "shard": place if report is None else report.shard,
        "address": answer.address,
        "problem": answer.problem,
        "step": None if report is None else report.global_step,
        "nbytes": None if report is None else report.nbytes,
        "pushes_per_second": _short(pushes),
        "bytes_in_per_second": _short(bytes_in),
        "bytes_out_per_second": _short(bytes_out),
        **percentiles(counts or ()),
        "live": None if report is None else report.totals.live,
        "held": None if report is None else report.held,
        "stalenesses": last or [],
        "storage": None if report is None else asdict(report.storage),
    }


def _total(counts: Iterable[tuple[int, int]]) -> int:
    return sum([count for _, count in counts])


def percentiles(counts: Sequence[tuple[int, int]]) -> Json:
    """Of pushes by their staleness; null if there are none."""
    by_bound = dict(counts)
    return {f"p{percent}": percentile(by_bound, percent) if counts else None for percent in (50, 99)}


def _worker(worker: JobWorker, view: JobView) -> Json:
    same = {name: _finite(getattr(worker, name)) for name in _OF_WORKER}
    return same | {
        "lease_left": worker.lease,
        "steps_per_second": _short(view.steps_per_second_of(worker)),
        "staleness": _short(mean_of(view.pushes(worker))),
        "transport": worker.tensor_transport,
    }


def _minimization(one: MinimizationStatus) -> Json:
    """A minimization; null for its last accepted point before there is one."""
    point = None if one.point is None else asdict(one.point)
    if point is not None:
        point |= {name: _finite(point[name]) for name in ("loss", "gradient", "step")}
    return {
        "name": one.name,
        "over": bool(one.end),
        "portions": one.portions,
        "counted": one.counted,
        "backups": one.backups,
        "backups_won": one.backups_won,
        "point": point,
    }


def _variable(
    variable: JobVariable, parts: Mapping[tuple[int, str], VariableStatus], rates: Mapping[int, ShardRates]
) -> Json:
    """A variable, with one number for each of its shards."""
    name = variable.spec.name
    mine = [parts[shard, name] for shard in variable.shards]
    moved = [
        rates[shard].variable(part) if shard in rates else (None, None)
        for shard, part in zip(variable.shards, mine, strict=True)
    ]
    return {
        "name": name,
        "dtype": variable.spec.dtype,
        "shape": list(variable.spec.shape),
        "shards": list(variable.shards),
        "nbytes": [part.nbytes for part in mine],
        "versions": list(variable.versions),
        "in": [_short(bytes_in) for bytes_in, _ in moved],
        "out": [_short(bytes_out) for _, bytes_out in moved],
        "optimizer": None if variable.optimizer is None else to_plain(variable.optimizer),
        "table": variable.table,
    }


def _rows(job: JobStatus, rates: Iterable[ShardRates]) -> dict[str, Row]:
    """The pushes of live workers of the last seconds, over all shards, by worker and variable."""
    rows: dict[str, Row] = {worker.name: {} for worker in job.workers if worker.state == "live"}
    incarnations = {worker.name: worker.incarnation for worker in job.workers}
    for changes in rates:
        for (worker, incarnation), row in changes.rows():
            if worker in rows and incarnations[worker] == incarnation:
                _add(row, rows[worker])
    return rows


def _add(row: Row, to: Row) -> None:
    if not to:
        to.update(row)
        return
    for variable, (pushes, total) in row.items():
        before = to.get(variable, (0, 0))
        to[variable] = before[0] + pushes, before[1] + total


def _matrix(job: JobStatus, rows: Mapping[str, Row]) -> Json:
    """The mean staleness by worker and variable; null without a push."""
    known = {name for report in _reports(job) for name in _matrix_variables(report)}
    variables = [variable.spec.name for variable in job.variables if variable.spec.name in known]
    variables = variables[: MAX_CELLS // max(1, len(rows))]
    cells = [[_mean(row.get(variable)) for variable in variables] for row in rows.values()]
    return {"workers": list(rows), "variables": variables, "cells": cells}


def _matrix_variables(report: StatusReport) -> tuple[str, ...]:
    return () if report.detail is None else report.detail.matrix.variables


def _mean(cell: tuple[int, int] | None) -> float | None:
    return None if cell is None else round(cell[1] / cell[0], 3)


def _short(value: float | None) -> float | None:
    """Four significant digits, which are sufficient for a display."""
    return None if value is None else float(f"{value:.4g}")


def _finite(value: Any) -> Any:  # noqa: ANN401 - of any type
    """A value in JSON, which has neither NaN nor infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
