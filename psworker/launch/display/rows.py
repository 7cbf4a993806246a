"""The choice of lines of the live display that fit a terminal, and of workers that are shown. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from pswire.terminal.plurals import pluralize
from psworker.progress.progress import WorkerProgress

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


def chosen(workers: Sequence[WorkerProgress], rows: int) -> tuple[list[WorkerProgress], str]:
    """The workers that are shown in this number of rows, in order, and a line about the others; "" if there are none.

    Workers in trouble stay: lost ones, then workers whose push is held for long, slow ones, and ones yet to join.
    """
    if len(workers) <= rows:
        return list(workers), ""
    rates = [one.rate for one in workers if one.status.state == "live"]
    usual = median(rates) if rates else 0.0
    first = sorted(range(len(workers)), key=lambda number: (-_trouble(workers[number], usual), number))
    shown = sorted(first[: max(0, rows - 1)])
    states = [workers[number].status.state for number in sorted(first[len(shown) :])]
    counts = ", ".join(f"{states.count(one):,} {one}" for one in dict.fromkeys(states))
    more = f"and {pluralize(len(states), 'more worker')}: {counts}"
    return [workers[number] for number in shown], more if rows else ""


def _trouble(worker: WorkerProgress, usual_rate: float) -> int:
    status = worker.status
    if status.state != "live":
        return {"lost": 4, "starting": 1, "left": -1}[status.state]
    return 3 if status.held >= LONG_HELD else 2 if worker.rate < usual_rate / 2 else 0
