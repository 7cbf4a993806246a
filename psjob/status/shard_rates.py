"""What changed on a shard in the last seconds: the one definition of the rates and means of all displays. Pure.

Rates and means are differences of a shard's counters between its report and the first one of the last `WINDOW` seconds,
or the one before if that is longer ago, so a worker that pushes every two seconds has a steady rate. A shard whose
counters went back - it was started again, restored a checkpoint, or began another job - has none at that moment. A
silent shard has none either; when it answers again, they cover the whole time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pswire.messages import StatusReport, VariableStatus, WorkerStatus

#: Seconds that rates and means cover, and the fewest of which there is a rate.
WINDOW, SHORTEST = 5.0, 0.2

#: By variable: pushes, and the sum of their stalenesses.
Row = dict[str, tuple[int, int]]


class Known:
    """A report of a shard, and when it came, in seconds of any clock that never goes back."""

    def __init__(self, report: StatusReport, at: float) -> None:
        self.report, self.at = report, at

    @cached_property
    def workers(self) -> dict[tuple[str, int], WorkerStatus]:
        """By name and incarnation."""
        return {(one.name, one.incarnation): one for one in self.report.workers}

    @cached_property
    def variables(self) -> dict[str, VariableStatus]:
        """By name; only some displays need them."""
        return {one.spec.name: one for one in self.report.variables}


#: By shard, its reports of the last seconds, the oldest first.
Reports = Mapping[int, Sequence[Known]]


@dataclass(frozen=True, slots=True)
class WorkerPushes:
    """Pushes of a worker, the sum of their stalenesses, and pushes per second."""

    pushes: int
    staleness_sum: int
    rate: float | None


class ShardRates:
    """Differences of a shard's counters between the first and the last of some reports, the oldest first.

    What the first does not have yet, such as a worker that joined later, is compared with the first that has it.
    """

    def __init__(self, reports: Sequence[Known]) -> None:
        *self._earlier, self._known = reports
        self._now, self._before = self._known.report, self._earlier[0].report

    def last(self) -> "ShardRates":
        """Those since the report before the last one."""
        return ShardRates([self._earlier[-1], self._known])

    def went_back(self) -> bool:
        """True if counters are lower than they were, or belong to another job."""
        now, before = self._now, self._before
        if now.jobs and before.jobs and now.jobs[-1].job.number != before.jobs[-1].job.number:
            return True
        counted = now.detail is not None and before.detail is not None
        return now.global_step < before.global_step or (counted and self.stalenesses() is None)

    def rate(self, difference: int, since: float | None = None) -> float | None:
        """A difference per second, from a moment on: that of the first report, if none is given."""
        seconds = self._known.at - (self._earlier[0].at if since is None else since)
        return difference / seconds if seconds >= SHORTEST else None

    def steps(self) -> float | None:
        """Updates per second."""
        return self.rate(self._now.global_step - self._before.global_step)

    def stalenesses(self) -> list[tuple[int, int]] | None:
        """Applied pushes by staleness, up to each bound; None if they are not known or counters went back."""
        if self._now.detail is None or self._before.detail is None:
            return None
        old = {one.staleness: one.pushes for one in self._before.detail.stalenesses}
        counts = [(one.staleness, one.pushes - old.pop(one.staleness, 0)) for one in self._now.detail.stalenesses]
        if any(count < 0 for _, count in counts) or any(old.values()):
            return None
        return [(bound, count) for bound, count in counts if count]

    def worker(self, name: str, incarnation: int) -> WorkerPushes | None:
        """The pushes of a worker, without a rate if it has joined just now; None if its counters went back."""
        key = name, incarnation
        now, known = self._known.workers.get(key), next((one for one in self._earlier if key in one.workers), None)
        if now is None:
            return None
        if known is None:
            return WorkerPushes(now.steps, now.staleness_sum, None)
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
        """Bytes in and out per second; if some variables are not listed, as the shard counts them, over 10 s."""
        if self._now.totals.variables > len(self._now.variables):
            return self._now.traffic.bytes_in, self._now.traffic.bytes_out
        both = [self.variable(one) for one in self._now.variables]
        return _sum([one[0] for one in both]), _sum([one[1] for one in both])

    def rows(self) -> Iterable[tuple[tuple[str, int], Row]]:
        """By worker with its incarnation: its pushes, by variable."""
        if self._now.detail is None or self._before.detail is None:
            return
        now, old = self._now.detail.matrix, self._before.detail.matrix
        before = {(row.worker, row.incarnation): _row(old.variables, row.pushes, row.sums) for row in old.workers}
        for one in now.workers:
            key = one.worker, one.incarnation
            earlier, found = before.get(key, {}), Row()
            for name, (pushes, total) in _row(now.variables, one.pushes, one.sums).items():
                known_pushes, known_total = earlier.get(name, (0, 0))
                if pushes > known_pushes and total >= known_total:
                    found[name] = pushes - known_pushes, total - known_total
            yield key, found


def _row(variables: Sequence[str], pushes: Sequence[int], sums: Sequence[int]) -> Row:
    return dict(zip(variables, zip(pushes, sums, strict=True), strict=True))


def _sum(rates: Sequence[float | None]) -> float | None:
    """The sum of the known rates; None if none is known."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known or not rates else None


def with_reports(earlier: Reports, reports: Iterable[StatusReport], at: float) -> Reports:
    """The reports of the last seconds, with these; of a shard whose counters went back only the new one."""
    return {**earlier, **{one.shard: _with_report(earlier.get(one.shard, ()), Known(one, at)) for one in reports}}


def _with_report(earlier: Sequence[Known], now: Known) -> Sequence[Known]:
    if earlier and ShardRates([earlier[-1], now]).went_back():
        return [now]
    last = earlier[-1].at if earlier else now.at
    return [*[one for one in earlier if last - one.at < WINDOW], now]
