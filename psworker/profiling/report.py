"""The table of a profile: a line for each phase of a step, and one for each op or other part of it."""

from typing import NamedTuple

from rich.console import Group

from psjob.terminal.fitted_table import Column, FittedTable, make_console
from pswire.plurals import pluralize
from psworker.profiling.profile import Profile, Sum


class _Row(NamedTuple):
    phase: str
    part: Sum
    share: float


def show_profile(profile: Profile) -> None:
    """Print the table."""
    rows: list[_Row] = []
    for phase, parts in profile.sums().items():
        whole = sum(part.nanoseconds for part in parts)
        rows.append(_Row(phase, Sum("", 0, whole), whole / profile.total))
        rows += [_Row("", part, part.nanoseconds / profile.total) for part in parts]
    columns = (
        Column("phase", lambda one: one.phase),
        Column("op or part", lambda one: one.part.name, shortest=12, cut=True),
        Column("calls", lambda one: f"{one.part.calls:,}" if one.part.calls else "", number=True),
        Column("total", lambda one: f"{one.part.nanoseconds / 1e6:,.2f} ms", number=True),
        Column("mean", _mean, number=True),
        Column("of the step", lambda one: f"{one.share:.1%}", number=True),
    )
    mean = profile.total / profile.measured
    steps = f"{pluralize(profile.measured, 'step')} after {profile.warmup:,} of warm-up"
    title = f"{steps}: mean {mean / 1e6:.3f} ms, median {profile.median / 1e6:.3f} ms"
    make_console().print(Group("", FittedTable(columns, rows, title, _style)))


def _mean(row: _Row) -> str:
    return f"{row.part.nanoseconds / row.part.calls / 1000:,.1f} us" if row.part.calls else ""


def _style(column: Column, text: str, row: int) -> str:
    return "bold" if column.header == "phase" else ""
