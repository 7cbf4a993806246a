"""`psworker runs --compare`: what differs between runs in options, arguments and versions, and their results."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from rich.console import Group

from psjob.terminal.fitted_table import Column, FittedTable, make_console
from psworker.runs.curves import AXES, Curve, run_curves
from psworker.runs.listing import duration, number, option_text, rate, run_row, scalar_tags, warn
from psworker.runs.run_data import RunData, read_run_data
from psworker.runs.run_file import Start

#: Points of a curve, of its 400 at most, over which a cost is averaged, since the cost of one batch is noisy.
WINDOW = 5
_AMOUNTS = {"step": "steps", "time": "time", "examples": "examples"}


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side: a row is a name and, for each run, a value; texts of settings, numbers of results.

    `settings` are the settings that differ. Results are None where a run has none.
    """

    names: tuple[str, ...]
    settings: dict[str, tuple[str, ...]]
    results: dict[str, tuple[float | str | None, ...]]


def compare(runs: Sequence[RunData], cost: float | None) -> Comparison:
    """Compare runs; with a `cost`, also when each has reached it."""
    settings = [dict(_settings(run.run.lives[-1].start)) for run in runs]
    names = dict.fromkeys(chain.from_iterable(settings))
    rows = {name: tuple(one.get(name, "") for one in settings) for name in names}
    return Comparison(
        tuple(run.name for run in runs),
        {name: row for name, row in rows.items() if len(set(row)) > 1},
        dict(_results(runs, cost)),
    )


def _settings(start: Start) -> Iterable[tuple[str, str]]:
    yield "script", start.script
    for name, value in start.options.items():
        yield f"--{name.replace('_', '-')}", option_text(value)
    yield from argument_pairs(start.arguments)
    yield "text of the script", start.script_sha256[:12]
    yield from start.environment.items()
    yield from start.versions.items()
    yield "host", start.process.host
    yield "cores", str(start.cores)
    yield "system", start.system


def argument_pairs(arguments: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Arguments of a script as names and values: of `--name value`, `--name=value`, flags, and others by position.

    Only the script knows whether a flag takes the next word as its value; here it does.
    """
    words, place = list(arguments), 0
    while words:
        word = words.pop(0)
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            name, equals, value = word.partition("=")
            if not equals and words and not words[0].startswith("--"):
                value = words.pop(0)
            yield f"script {name}", value if equals or value else "yes"
        else:
            place += 1
            yield f"script argument {place}", word


def _results(runs: Sequence[RunData], cost: float | None) -> Iterable[tuple[str, tuple[float | str | None, ...]]]:
    rows = [run_row(run.path, run.run) for run in runs]
    last = [run.run.lives[-1].results for run in runs]
    yield "outcome", tuple(row.outcome for row in rows)
    yield "steps", tuple(row.step for row in rows)
    yield "time", tuple(row.seconds for row in rows)
    yield "steps/s", tuple(row.steps_per_second for row in rows)
    yield "mean staleness", tuple(one.staleness for one in last)
    yield "dropped", tuple(one.dropped for one in last)
    yield "last cost", tuple(row.cost for row in rows)
    for tag in scalar_tags(rows):
        yield f"last {tag}", tuple(row.scalars.get(tag) for row in rows)
    for by in AXES:
        curves = [run_curves(run, by, "cost").job for run in runs]
        ends = [curve.x[-1] for curve in curves if curve.x]
        if len(ends) < len(runs):
            continue  # nothing was recorded in one of them
        if (end := min(ends)) > 0:
            at = duration(end) if by == "time" else f"{end:,.0f} {_AMOUNTS[by]}"
            yield f"cost at {at}", tuple(cost_at(curve, end) for curve in curves)
        if cost is not None:
            yield f"{_AMOUNTS[by]} to cost {cost:g}", tuple(first_at(curve, cost) for curve in curves)


def cost_at(curve: Curve, x: float) -> float | None:
    """The mean of the last `WINDOW` points up to x."""
    inside = [value for position, value in zip(*curve, strict=True) if position <= x]
    return fmean(inside[-WINDOW:]) if inside else None


def first_at(curve: Curve, cost: float) -> float | None:
    """The first position at which the mean of the last `WINDOW` points is at most a cost."""
    for last in range(WINDOW, len(curve.y) + 1):
        if fmean(curve.y[last - WINDOW : last]) <= cost:
            return curve.x[last - 1]
    return None


def show_comparison(paths: Sequence[Path], cost: float | None, *, as_json: bool) -> None:
    """Print the comparison of the runs in folders. Raises `DamagedFile` if one has no `run.json` that can be read."""
    runs = [read_run_data(path) for path in paths]
    warn(chain.from_iterable(run.problems for run in runs))
    compared = compare(runs, cost)
    if as_json:
        data = {"runs": compared.names, "settings": compared.settings, "results": compared.results}
        click.echo(json.dumps(data, indent=2))
        return
    settings = _table("Settings that differ", compared.names, compared.settings)
    make_console().print(Group(settings, "", _table("Results", compared.names, compared.results)))


def _table(title: str, names: Sequence[str], rows: dict[str, Any]) -> FittedTable:
    columns = [Column("", lambda row: row[0])]
    for place, name in enumerate(names):
        columns.append(Column(name, partial(_cell, place=place), number=title == "Results", shortest=12))
    return FittedTable(columns, list(rows.items()), title)


def _cell(row: tuple[str, Sequence[float | str | None]], place: int) -> str:
    name, value = row[0], row[1][place]
    if value is None or isinstance(value, str):
        return value or "–"
    if name.startswith("last "):
        return number(value)
    if name.startswith("time"):
        return duration(value)
    if name == "steps/s":
        return rate(value)
    return f"{value:,.0f}" if name.startswith(("steps", "examples", "dropped")) else number(value)
