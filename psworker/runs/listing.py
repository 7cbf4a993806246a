"""`psworker runs`: the runs below folders as a table, one run with its options, workers and events; or as JSON."""

import json
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from psjob.terminal.fitted_table import Column, FittedTable, make_console, printable
from pswire.errors import ConfigurationError, DamagedFile
from psworker.progress.text import clock, rate_text
from psworker.runs.run_events import RunEvent, read_events
from psworker.runs.run_file import NAME, Run, plain_run, read_run
from psworker.runs.scalar_files import FOLDER

#: How deep below a folder runs are looked for, and how many folders are looked at.
MAX_DEPTH, MAX_FOLDERS = 4, 10_000
#: Events of a run that are shown, the newest ones.
MOST_EVENTS = 20
NONE = "–"

_STYLES = {
    "completed": "green",
    "running": "cyan",
    "failed": "bold red",
    "interrupted": "bold red",
    "stopped": "yellow",
    "warning": "yellow",
    "error": "bold red",
}


@dataclass(frozen=True)
class RunRow:
    """A run in a list; figures are over all its lives; `cost`, `scalars` and `outcome` are the last ones."""

    path: str
    begin: float
    script: str
    workers: int
    shards: int
    consistency: str
    step: int
    seconds: float
    steps_per_second: float | None
    cost: float | None
    outcome: str
    lives: int
    scalars: dict[str, float]


def run_row(path: Path, run: Run) -> RunRow:
    """The row of a run."""
    last = run.lives[-1]
    steps, seconds = trained(run)
    options = last.start.options
    return RunRow(
        path=str(path),
        begin=run.lives[0].begin,
        script=Path(last.start.script).name,
        workers=_count(options.get("workers")),
        shards=_count(options.get("shards")),
        consistency=str(options.get("consistency", "")),
        step=last.results.step,
        seconds=sum(life.seconds for life in run.lives),
        steps_per_second=steps / seconds if seconds else None,
        cost=next((life.results.cost for life in reversed(run.lives) if life.results.cost is not None), None),
        outcome=last.state_now(),
        lives=len(run.lives) + run.omitted,
        scalars=last.results.scalars,
    )


def trained(run: Run) -> tuple[int, float]:
    """Updates and the seconds from the first to the last one, over all lives."""
    steps = sum(max(0, life.results.steps) for life in run.lives)
    return steps, sum(life.results.seconds for life in run.lives)


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


_COLUMNS = (
    Column("run", lambda one: one.path, shortest=12, cut=True),
    Column("begin", lambda one: moment(one.begin), 6),
    Column("script", lambda one: one.script, 5, shortest=10, cut=True),
    Column("workers", lambda one: f"{one.workers}×{one.shards}", 7, number=True),
    Column("consistency", lambda one: one.consistency or NONE, 4),
)


def result_columns(rows: Iterable[RunRow]) -> list[Column]:
    """The columns with the results of runs; the last scalar of each tag that one of them has."""
    return [
        Column("steps", lambda one: f"{one.step:,}", number=True),
        Column("time", lambda one: duration(one.seconds), 3, number=True),
        Column("steps/s", lambda one: rate(one.steps_per_second), 2, number=True),
        Column("cost", lambda one: number(one.cost), 1, number=True),
        *[Column(tag, partial(_scalar, tag=tag), 8, number=True) for tag in scalar_tags(rows)],
        Column("outcome", lambda one: one.outcome + (f" ({one.lives} lives)" if one.lives > 1 else "")),
    ]


def scalar_tags(rows: Iterable[RunRow]) -> list[str]:
    """The tags of the programs' scalars in any of the runs."""
    return sorted({tag for row in rows for tag in row.scalars})


def _scalar(row: RunRow, tag: str) -> str:
    return number(row.scalars.get(tag))


def show_runs(paths: Sequence[Path], *, as_json: bool) -> None:
    """Print the run in a folder, or the runs below several; files that cannot be read are named on stderr.

    Raises `ConfigurationError` if one folder is named and is damaged, or no folder is there.
    """
    if len(paths) == 1 and (paths[0] / NAME).exists():
        _show_run(paths[0], as_json=as_json)
        return
    rows, problems = find_runs(paths)
    warn(problems)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    elif rows:
        make_console().print(FittedTable([*_COLUMNS, *result_columns(rows)], rows, style=style))
    else:
        folders = " and ".join(map(str, paths))
        click.echo(
            f"psworker: no runs below {folders}: psworker local --run-dir {paths[0] / 'NAME'} makes one", err=True
        )


def find_runs(paths: Iterable[Path]) -> tuple[list[RunRow], list[str]]:
    """The runs below folders, the oldest first, and what was skipped. Raises `ConfigurationError` without a folder."""
    rows: dict[Path, RunRow] = {}
    problems: list[str] = []
    for path in paths:
        if not path.is_dir():
            raise ConfigurationError(f"there is no folder {path}: psworker local --run-dir {path / 'NAME'} makes one")
        for folder in _folders(path, problems):
            try:
                rows[folder] = run_row(folder, read_run(folder))
            except DamagedFile as error:
                problems.append(str(error))
    return sorted(rows.values(), key=lambda row: (row.begin, row.path)), problems


def _folders(top: Path, problems: list[str]) -> Iterable[Path]:
    """Folders of runs at `top` and below, no deeper than a run; others that look like one are problems."""
    level, looked = [top], 0
    for _ in range(MAX_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            looked += 1
            if looked > MAX_FOLDERS:
                problems.append(f"only {MAX_FOLDERS:,} folders below {top} were looked at: name one of them")
                return
            if (folder / NAME).exists():
                yield folder
            elif (folder / "checkpoints").is_dir() and (folder / "logs").is_dir():
                problems.append(f"{folder} has no {NAME}: the run is of an earlier version, or of another program")
            elif (folder / FOLDER).is_dir():
                problems.append(f"{folder} has no {NAME}: a session has recorded scalars there, for psworker plot")
            else:
                try:
                    inside = sorted(folder.iterdir())
                    below += [one for one in inside if not one.name.startswith(".") and one.is_dir()]
                except OSError as error:
                    problems.append(f"{folder} cannot be read: {error.strerror}")
        level = below


def _show_run(path: Path, *, as_json: bool) -> None:
    run = read_run(path)
    events, problem = read_events(path)
    warn([problem] if problem else [])
    if as_json:
        data: dict[str, Any] = {"path": str(path), **plain_run(run), "events": [asdict(event) for event in events]}
        click.echo(json.dumps(data, indent=2))
        return
    make_console().print(Group(*_parts(path, run, events)))


def _parts(path: Path, run: Run, events: Sequence[RunEvent]) -> Iterable[RenderableType]:
    last, row = run.lives[-1], run_row(path, run)
    start, results = last.start, last.results
    what = [row.outcome, f"step {row.step:,}", duration(row.seconds)]
    what += [] if row.steps_per_second is None else [f"{rate_text(row.steps_per_second)} steps/s"]
    what += [] if row.cost is None else [f"cost {row.cost:.4f}"]
    what += [] if results.staleness is None else [f"staleness {results.staleness:.1f}"]
    what += [f"{results.dropped:,} dropped"] * bool(results.dropped)
    what += [f"{tag} {number(value)}" for tag, value in results.scalars.items()]
    yield Text(printable(f"{path}: {' · '.join(what)}"))
    if last.error:
        yield Text(printable(last.error), "bold red")
    yield ""
    facts = {
        "id": run.id,
        "command": shlex.join(start.command),
        "folder": start.directory,
        "host": f"{start.process.host}, {start.cores} cores, {start.system}",
        "versions": ", ".join(f"{name} {version}" for name, version in start.versions.items()),
        "environment": " ".join(f"{name}={shlex.quote(value)}" for name, value in start.environment.items()),
    }
    options = {name.replace("_", "-"): option_text(value) for name, value in start.options.items()}
    for title, pairs in (("Run", facts), ("Options", options)):
        rows = [(name, value) for name, value in pairs.items() if value]
        columns = (Column("name", lambda one: one[0]), Column("value", lambda one: one[1], shortest=20))
        yield FittedTable(columns, rows, title)
        yield ""
    if len(run.lives) > 1:
        yield FittedTable(_LIVES, [*enumerate(run.lives, 1)], "Lives", style)
        yield ""
    if results.workers:
        yield FittedTable(_WORKERS, results.workers, "Workers", style)
        yield ""
    if events:
        more = len(events) - MOST_EVENTS
        title = f"Events (the last {MOST_EVENTS} of {len(events):,})" if more > 0 else "Events"
        yield FittedTable(_EVENTS, events[-MOST_EVENTS:], title, style)


_LIVES = (
    Column("life", lambda one: str(one[0]), number=True),
    Column("begin", lambda one: moment(one[1].begin)),
    Column("steps", lambda one: f"{one[1].results.first_step:,} to {one[1].results.step:,}", number=True),
    Column("time", lambda one: duration(one[1].seconds), 1, number=True),
    Column("outcome", lambda one: one[1].state_now()),
)
_WORKERS = (
    Column("worker", lambda one: one.name, shortest=12, cut=True),
    Column("state", lambda one: one.state or NONE, 3),
    Column("steps", lambda one: f"{one.steps:,}", number=True),
    Column("cost", lambda one: number(one.cost), number=True),
    Column("staleness", lambda one: number(one.staleness, ".1f"), 2, number=True),
    Column("dropped", lambda one: f"{one.dropped:,}", 4, number=True),
    Column("restarts", lambda one: str(one.restarts), 1, number=True),
)
_EVENTS = (
    Column("time", lambda one: moment(one.time, "%Y-%m-%d %H:%M:%S")),
    Column("step", lambda one: NONE if one.step is None else f"{one.step:,}", 1, number=True),
    Column("level", lambda one: one.level, 3),
    Column("source", lambda one: one.source, 2),
    Column("event", lambda one: one.text, shortest=30),
)


def style(column: Column, text: str, row: int) -> str:
    """The style of a cell, by its text."""
    return _STYLES.get(text.partition(" ")[0], "") if column.header in ("outcome", "level") else ""


def moment(seconds: float, form: str = "%Y-%m-%d %H:%M") -> str:
    """A time since 1970 as a local one."""
    try:
        return time.strftime(form, time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return NONE


def duration(seconds: float) -> str:
    """Seconds, with a digit after the point below a minute; more as minutes and hours."""
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)


def number(value: float | None, form: str = "") -> str:
    """A number, by default with four digits after the point, or four in all if it is large or small; or a dash."""
    if value is None:
        return NONE
    usual = value == 0 or 1e-3 <= abs(value) < 1e6
    return f"{value:,{form or ('.4f' if usual else '.4g')}}"


def rate(value: float | None) -> str:
    """Steps per second, or a dash."""
    return NONE if value is None else rate_text(value)


def option_text(value: object) -> str:
    """An option as it is typed; "" for one that was not given."""
    return "" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def warn(problems: Iterable[str]) -> None:
    """Name files that cannot be read, on stderr."""
    for problem in problems:
        click.echo(f"psworker: skipped: {problem}", err=True)
