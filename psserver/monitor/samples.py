"""Samples: what changed in a job between two statuses, and how it is now, as JSON data. Pure.

Rates and means are differences of a shard's counters between its report and the earliest of the last seconds, so that
a worker with a push every two seconds has a steady rate. A counter that went back - the shard was started again,
restored a checkpoint, or began another job - has none at that moment: null. A shard that is silent has none either, and
when it answers again, they are of the whole time.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psserver.core.metrics import percentile
from pswire.messages import MinimizationStatus, StatusReport, VariableStatus
from pswire.specs.spec import to_plain
from pswire.status.job_status import JobStatus, JobVariable, JobWorker, ShardAnswer

#: A matrix has so many cells at most: the workers that are live, and then the first variables.
MAX_CELLS = 20_000

#: Seconds of which rates and means are.
WINDOW = 5.0

Json = dict[str, Any]

#: By variable: pushes, and the sum of their stalenesses.
_Row = dict[str, tuple[int, int]]


class Known:
    """A report of a shard, and when it came, in seconds of any clock that never goes back."""

    def __init__(self, report: StatusReport, at: float) -> None:
        self.report, self.at = report, at
        self.workers = {(one.name, one.incarnation): one for one in report.workers}
        self.variables = {one.spec.name: one for one in report.variables}


#: By shard, its reports of the last seconds, the oldest first.
Earlier = Mapping[int, Sequence[Known]]


def with_reports(earlier: Earlier, job: JobStatus, at: float) -> Earlier:
    """The reports of the last seconds, with those of this status; after counters went back only these."""
    present = [Known(one, at) for one in _reports(job)]
    return {**earlier, **{one.report.shard: _with_report(earlier.get(one.report.shard, ()), one) for one in present}}


def _with_report(earlier: Sequence[Known], now: Known) -> Sequence[Known]:
    if earlier and Interval(now, earlier[-1:]).went_back():
        earlier = ()
    return [*[known for known in earlier if now.at - known.at < WINDOW], now]


def make_sample(job: JobStatus, time: float, at: float, earlier: Earlier) -> Json:
    """The sample of a status, without events and findings; `docs/observability.md` has its fields.

    Args:
        job: the status, with the details of the shards.
        time: seconds since 1970.
        at: seconds, on the clock of `earlier`.
        earlier: the reports of the shards before this status.
    """
    intervals = {
        one.shard: Interval(Known(one, at), earlier[one.shard]) for one in _reports(job) if one.shard in earlier
    }
    present = job.jobs[-1] if job.jobs else None
    parts = {(report.shard, variable.spec.name): variable for report in _reports(job) for variable in report.variables}
    rows, columns = _rows(job, intervals.values()), _Row()
    for row in rows.values():
        _add(row, columns)
    return {
        "time": time,
        "step": job.global_step,
        "steps_per_second": max(
            [rate for interval in intervals.values() if (rate := interval.steps()) is not None], default=None
        ),
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
        "shards": [_shard(place, answer, intervals) for place, answer in enumerate(job.answers)],
        "workers": [_worker(worker, intervals.values()) for worker in job.workers],
        "variables": [
            {**_variable(variable, parts, intervals), "staleness": _mean(columns.get(variable.spec.name))}
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


class Interval:
    """The time between the earliest of some reports of a shard and its present one: differences of their counters.

    What the earliest does not have yet, such as a worker that joined later, is compared with the first that has it.
    """

    def __init__(self, now: Known, earlier: Sequence[Known]) -> None:
        self._known, self._earlier = now, earlier
        self._now, self._before = now.report, earlier[0].report

    def last(self) -> "Interval":
        """The time since the report before the present one."""
        return Interval(self._known, self._earlier[-1:])

    def went_back(self) -> bool:
        """Whether counters of the shard are lower than they were."""
        return self._now.global_step < self._before.global_step or self.stalenesses() is None

    def rate(self, difference: int, since: float | None = None) -> float | None:
        """A difference per second, from a moment on: that of the earliest report, if none is given."""
        seconds = self._known.at - (self._earlier[0].at if since is None else since)
        return _short(difference / seconds) if seconds > 0 else None

    def steps(self) -> float | None:
        """Updates per second."""
        steps = self._now.global_step - self._before.global_step
        return None if steps < 0 else self.rate(steps)

    def stalenesses(self) -> list[tuple[int, int]] | None:
        """Applied pushes by staleness, up to each bound; None if counters went back."""
        if self._now.detail is None or self._before.detail is None:
            return None
        old = {one.staleness: one.pushes for one in self._before.detail.stalenesses}
        counts = [(one.staleness, one.pushes - old.pop(one.staleness, 0)) for one in self._now.detail.stalenesses]
        if any(count < 0 for _, count in counts) or any(old.values()):
            return None
        return [(bound, count) for bound, count in counts if count]

    def worker(self, name: str, incarnation: int) -> "WorkerPushes | None":
        """The pushes of a worker; None if it was not there, or its counters went back."""
        key = name, incarnation
        now, known = self._known.workers.get(key), next((one for one in self._earlier if key in one.workers), None)
        if now is None or known is None:
            return None
        pushes, sums = now.steps - known.workers[key].steps, now.staleness_sum - known.workers[key].staleness_sum
        return None if pushes < 0 or sums < 0 else WorkerPushes(pushes, sums, self.rate(pushes, known.at))

    def variable(self, now: VariableStatus) -> tuple[float | None, float | None]:
        """Bytes in and out of a variable per second."""
        name = now.spec.name
        known = next((one for one in self._earlier if name in one.variables), None)
        if known is None:
            return None, None
        old = known.variables[name]
        bytes_in, bytes_out = now.bytes_in - old.bytes_in, now.bytes_out - old.bytes_out
        if min(bytes_in, bytes_out) < 0:
            return None, None
        return self.rate(bytes_in, known.at), self.rate(bytes_out, known.at)

    def traffic(self) -> tuple[float | None, float | None]:
        """Bytes in and out per second, of all variables; of very many, of which some are not listed, over 10 s."""
        if self._now.totals.variables > len(self._now.variables):
            return _short(self._now.traffic.bytes_in), _short(self._now.traffic.bytes_out)
        both = [self.variable(one) for one in self._now.variables]
        return _sum([one[0] for one in both]), _sum([one[1] for one in both])

    def rows(self) -> Iterable[tuple[tuple[str, int], _Row]]:
        """By worker with its incarnation: its pushes since then, by variable."""
        if self._now.detail is None or self._before.detail is None:
            return
        now, old = self._now.detail.matrix, self._before.detail.matrix
        places = {name: place for place, name in enumerate(old.variables)}
        same = now.variables == old.variables
        rows = {(row.worker, row.incarnation): row for row in old.workers}
        none = (0,) * len(now.variables)
        for row in now.workers:
            before = rows.get((row.worker, row.incarnation))
            old_pushes, old_sums = (none, none) if before is None else (before.pushes, before.sums)
            if before is not None and not same:
                old_pushes, old_sums = [
                    tuple([counts[places[name]] if name in places else 0 for name in now.variables])
                    for counts in (old_pushes, old_sums)
                ]
            changes = zip(now.variables, row.pushes, old_pushes, row.sums, old_sums, strict=True)
            yield (
                (row.worker, row.incarnation),
                {name: (m - n, s - t) for name, m, n, s, t in changes if m > n and s >= t},
            )


@dataclass(frozen=True, slots=True)
class WorkerPushes:
    """Pushes of a worker, the sum of their stalenesses, and pushes per second."""

    pushes: int
    staleness_sum: int
    rate: float | None


def _shard(place: int, answer: ShardAnswer, intervals: Mapping[int, Interval]) -> Json:
    """A shard; null for all that is not known of a silent one."""
    report = answer.report
    interval = None if report is None else intervals.get(report.shard)
    counts = None if interval is None else interval.stalenesses()
    last = None if interval is None else interval.last().stalenesses()
    bytes_in, bytes_out = (None, None) if interval is None else interval.traffic()
    return {
        "shard": place if report is None else report.shard,
        "address": answer.address,
        "problem": answer.problem,
        "step": None if report is None else report.global_step,
        "nbytes": None if report is None else report.nbytes,
        "pushes_per_second": None if interval is None or counts is None else interval.rate(_total(counts)),
        "bytes_in_per_second": bytes_in,
        "bytes_out_per_second": bytes_out,
        **percentiles(counts or ()),
        "live": None if report is None else report.totals.live,
        "held": None if report is None else report.held,
        "stalenesses": last or [],
        "storage": None if report is None else asdict(report.storage),
    }


def _total(counts: Iterable[tuple[int, int]]) -> int:
    return sum([count for _, count in counts])


def _sum(rates: Sequence[float | None]) -> float | None:
    """The sum of those that are known; null if none is."""
    known = [rate for rate in rates if rate is not None]
    return _short(sum(known)) if known or not rates else None


def percentiles(counts: Sequence[tuple[int, int]]) -> Json:
    """Of pushes by their staleness; null if there are none."""
    by_bound = dict(counts)
    return {f"p{percent}": percentile(by_bound, percent) if counts else None for percent in (50, 99)}


def _worker(worker: JobWorker, intervals: Iterable[Interval]) -> Json:
    found = [one for each in intervals if (one := each.worker(worker.name, worker.incarnation)) is not None]
    pushes = sum([one.pushes for one in found])
    return {
        "name": worker.name,
        "number": worker.number,
        "incarnation": worker.incarnation,
        "state": worker.state,
        "chief": worker.chief,
        "steps": worker.steps,
        "steps_per_second": max([one.rate for one in found if one.rate is not None], default=None),
        "cost": _finite(worker.cost),
        "staleness": _short(sum([one.staleness_sum for one in found]) / pushes) if pushes else None,
        "mean_staleness": _finite(worker.mean_staleness),
        "dropped": worker.dropped,
        "clipped": worker.clipped,
        "epoch": worker.epoch,
        "lease_left": _finite(worker.lease_left),
        "waiting_for": worker.waiting_for,
        "held": _finite(worker.held),
        "waited": _finite(worker.waited),
        "transport": worker.tensor_transport,
        "encoding": worker.encoding,
        "gradient": _finite(worker.gradient),
        "gradient_mean": _finite(worker.gradient_mean),
        "error": worker.error,
        "error_time": _finite(worker.error_time),
        "drop_reason": worker.drop_reason,
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
    variable: JobVariable, parts: Mapping[tuple[int, str], VariableStatus], intervals: Mapping[int, Interval]
) -> Json:
    """A variable, with one number for each of its shards."""
    name = variable.spec.name
    mine = [parts[shard, name] for shard in variable.shards]
    rates = [_rates(part, intervals.get(shard)) for shard, part in zip(variable.shards, mine, strict=True)]
    return {
        "name": name,
        "dtype": variable.spec.dtype,
        "shape": list(variable.spec.shape),
        "shards": list(variable.shards),
        "nbytes": [part.nbytes for part in mine],
        "versions": list(variable.versions),
        "in": [bytes_in for bytes_in, _ in rates],
        "out": [bytes_out for _, bytes_out in rates],
        "optimizer": None if variable.optimizer is None else to_plain(variable.optimizer),
        "table": variable.table,
    }


def _rates(part: VariableStatus, interval: Interval | None) -> tuple[float | None, float | None]:
    """Bytes in and out of a part of a variable, per second."""
    return (None, None) if interval is None else interval.variable(part)


def _rows(job: JobStatus, intervals: Iterable[Interval]) -> dict[str, _Row]:
    """The pushes of live workers of the last seconds, over all shards, by worker and variable."""
    rows: dict[str, _Row] = {worker.name: {} for worker in job.workers if worker.state == "live"}
    incarnations = {worker.name: worker.incarnation for worker in job.workers}
    for interval in intervals:
        for (worker, incarnation), row in interval.rows():
            if worker in rows and incarnations[worker] == incarnation:
                _add(row, rows[worker])
    return rows


def _add(row: _Row, to: _Row) -> None:
    if not to:
        to.update(row)
        return
    for variable, (pushes, total) in row.items():
        before = to.get(variable, (0, 0))
        to[variable] = before[0] + pushes, before[1] + total


def _matrix(job: JobStatus, rows: Mapping[str, _Row]) -> Json:
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


def _short(value: float) -> float:
    """Four significant digits, which are sufficient for a display."""
    return float(f"{value:.4g}")


def _finite(value: float | None) -> float | None:
    """A number in JSON, which has neither NaN nor infinity."""
    return None if value is None or not math.isfinite(value) else value
