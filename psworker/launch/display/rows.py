"""The choice of lines of the live display that fit a terminal, and of workers that are shown. Pure."""

from dataclasses import dataclass, replace
from statistics import median

from psjob.status.job_status import JobWorker
from psjob.status.job_view import JobView
from pswire.plurals import pluralize

#: Rows that a table keeps while anything else can give way.
LEAST_ROWS = 3
#: Seconds for which a push is held until its worker counts as one in trouble.
LONG_HELD = 2.0


@dataclass(frozen=True)
class Rows:
    """Lines of the display: besides the bar a header, rows of the tables, notes, and blank lines before these."""

    header: int
    workers: int
    shards: int
    notes: int
    gaps: int = 1

    @property
    def height(self) -> int:
        """Number of lines, including the bar and the tables' headers."""
        parts = [self.workers + bool(self.workers), self.shards + bool(self.shards), self.notes]
        return 1 + self.header + sum(parts) + self.gaps * sum(map(bool, parts))


def fitted_rows(height: int, workers: int, shards: int, notes: int) -> Rows:
    """The rows for a terminal of `height` lines, with as many of these workers, shards and notes as fit."""
    rows = Rows(1, workers, shards, notes)
    for name, least in (
        ("gaps", 0),
        ("shards", LEAST_ROWS),
        ("workers", LEAST_ROWS),
        ("notes", 1),
        ("shards", 0),
        ("header", 0),
        ("notes", 0),
        ("workers", 0),
    ):
        if (excess := rows.height - height) <= 0:
            break
        have: int = getattr(rows, name)
        rows = replace(rows, **{name: least if name == "gaps" else max(min(have, least), have - excess)})
    return rows


def chosen(job: JobView, rows: int) -> tuple[list[JobWorker], str]:
    """The workers to show in `rows` rows, in their order, and a line about the others, "" if there are none.

    Workers in trouble are kept: lost ones, then those with a push held for long, slow ones, and starting ones.
    """
    workers = job.workers
    if len(workers) <= rows:
        return list(workers), ""
    rates = [job.steps_per_second_of(one) or 0.0 for one in workers]
    live = [rate for one, rate in zip(workers, rates, strict=True) if one.state == "live"]
    usual = median(live) if live else 0.0
    first = sorted(range(len(workers)), key=lambda number: (-_trouble(workers[number], rates[number], usual), number))
    shown = sorted(first[: max(0, rows - 1)])
    states = [workers[number].state for number in sorted(first[len(shown) :])]
    counts = ", ".join(f"{states.count(one):,} {one}" for one in dict.fromkeys(states))
    more = f"and {pluralize(len(states), 'more worker')}: {counts}"
    return [workers[number] for number in shown], more if rows else ""


def _trouble(worker: JobWorker, rate: float, usual_rate: float) -> int:
    if worker.state != "live":
        return {"lost": 4, "starting": 1, "left": -1}[worker.state]
    return 3 if worker.held >= LONG_HELD else 2 if rate < usual_rate / 2 else 0
