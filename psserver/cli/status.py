"""`psserver status`: shows a job once or repeatedly, as tables, as a live display, or as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pswire.errors import Unavailable
from pswire.job_status import JobStatus, JobWorker, ShardAnswer
from pswire.messages import Change
from pswire.optimizers import UpdateSpec
from pswire.specs.schedules import Schedule
from pswire.specs.spec import to_plain
from pswire.status_client import StatusClient

#: Width without a terminal, so that lines are not wrapped for programs that read them.
_NON_TERMINAL_WIDTH = 1000

_NONE = "–"
_MAX_WIDTH = {"variable": 14, "dtype and shape": 13, "slots": 10}  # if the whole table is too wide
_ANY_WIDTH = 10_000
_STYLES = {"live": "green", "left": "dim", "lost": "bold red", "silent": "bold red"}


def show_once(addresses: Sequence[str], timeout: float, *, as_json: bool) -> bool:
    """Print the status of a job as tables or indented JSON; returns whether all its shards answered.

    Raises:
        Unavailable: no shard answered.
    """
    with StatusClient(addresses) as client:
        job = client.ask(timeout)
    silent = [answer.problem for answer in job.answers if answer.report is None]
    if len(silent) == len(job.answers):
        raise Unavailable("\n".join(silent))
    if as_json:
        _print_json(job, indent=2)
    else:
        _console().print(tables(job))
    return not silent


def show_repeatedly(addresses: Sequence[str], timeout: float, every: float, *, as_json: bool) -> None:
    """Print the status every so many seconds, or as fast as the answers come, until Ctrl-C."""
    with StatusClient(addresses) as client, suppress(KeyboardInterrupt), _display(as_json) as show:
        while True:
            begin = time.monotonic()
            show(client.ask(timeout))
            time.sleep(max(0.0, begin + every - time.monotonic()))


@contextmanager
def _display(as_json: bool) -> Iterator[Callable[[JobStatus], object]]:
    """A function that shows each status: in place on a terminal, otherwise one below the other."""
    console = _console()
    if as_json:
        yield _print_json
    elif console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda job: live.update(tables(job), refresh=True)
    else:
        yield lambda job: console.print(tables(job), "")


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_NON_TERMINAL_WIDTH)


def _print_json(job: JobStatus, indent: int | None = None) -> None:
    click.echo(json.dumps(to_json(job, time.time()), indent=indent, allow_nan=False))


def to_json(job: JobStatus, at: float) -> dict[str, Any]:
    """The job as JSON data: its variables and workers, and under `shards` the report of each server.

    `at` is the time in seconds since 1970. A number that is NaN or infinite becomes None, since JSON has none.
    """
    fields = ("global_step", "repeated", "dropped", "half_pushes", "nbytes", "consistency", "handling", "problems")
    lists = ("variables", "workers", "epochs", "changes")
    data: dict[str, Any] = {"time": at, **{name: _plain(getattr(job, name)) for name in fields + lists}}
    data["shards"] = [
        {"address": answer.address, **({"problem": answer.problem} if answer.report is None else _plain(answer.report))}
        for answer in job.answers
    ]
    return data


def _plain(value: Any) -> Any:  # noqa: ANN401 - data of any kind
    """JSON data; a variable has the fields of its spec among its own."""
    match value:
        case dict():
            return {key: _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case float() if not math.isfinite(value):
            return None
        case UpdateSpec():
            return _plain(to_plain(value))
    if not dataclasses.is_dataclass(value):
        return value
    data = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return data.pop("spec", {}) | data


def tables(job: JobStatus) -> RenderableType:
    """The line and all tables that have rows."""
    parts: list[RenderableType] = [_text(job_line(job))]
    parts += [_text(f"warning: {problem}", "yellow") for problem in job.problems]
    shards = _Fitting(_shards(job.answers), _shards(job.answers, rates=False))
    variables = _Fitting(_variables(job), _variables(job, more=False))
    for table in (shards, _workers(job.workers), variables, _changes(job.changes)):
        if table.row_count:
            parts += ["", table]
    return Group(*parts)


def job_line(job: JobStatus) -> str:
    """The job in one line."""
    parts = (
        f"global step {job.global_step:,}",
        f"{job.shards} shard{'s' * (job.shards != 1)}",
        f"consistency {job.consistency or _NONE}",
        f"staleness handling {job.handling or _NONE}",
        f"{job.repeated:,} repeated",
        f"{job.dropped:,} dropped",
        *[f"{job.half_pushes:,} half-applied"] * (job.half_pushes > 0),
    )
    return " · ".join(parts)


class _Fitting:
    """A table that is replaced by a narrower one if it is too wide."""

    def __init__(self, table: Table, smaller: Table) -> None:
        self._table, self._smaller = table, smaller
        self.row_count = table.row_count

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = console.measure(self._table, options=options.update(max_width=_ANY_WIDTH)).maximum
        yield self._table if width <= options.max_width else self._smaller


def _table(title: str, left: Sequence[str], right: Sequence[str], last: Sequence[str] = ()) -> Table:
    """Columns of words, then of numbers, aligned right, then of words."""
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
        title=title,
        title_justify="left",
        title_style="bold",
    )
    for name in left:
        table.add_column(name, overflow="fold", no_wrap=name == "shard", min_width=15 if name == "address" else None)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    for name in last:
        table.add_column(name, overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(_text(cell, _STYLES.get(cell, "")) for cell in cells))


def _text(words: str, style: str = "") -> Text:
    """Text without control characters: a worker's name must not move the cursor."""
    return Text("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words), style)


def _shards(answers: Sequence[ShardAnswer], *, rates: bool = True) -> Table:
    numbers = ("step", "vars", "memory", *["pushes/s", "in/s", "out/s"] * rates, "stale\np50", "p99", "live")
    table = _table("Shards", ("shard", "address"), numbers)
    for answer in answers:
        report = answer.report
        if report is None:
            _add(table, "?", answer.address, "silent", *[_NONE] * (len(numbers) - 1))
            continue
        traffic = report.traffic
        _add(
            table,
            f"{report.shard}/{report.shards}",
            answer.address,
            f"{report.global_step:,}",
            f"{len(report.variables):,}",
            size(report.nbytes),
            *[f"{traffic.pushes:,.1f}", size(traffic.bytes_in), size(traffic.bytes_out)] * rates,
            f"{report.staleness.p50:,}",
            f"{report.staleness.p99:,}",
            f"{sum(worker.state == 'live' for worker in report.workers):,}",
        )
    return table


def _workers(workers: Sequence[JobWorker]) -> Table:
    numbers = ("steps", "dropped", "mean\nstaleness", "loss", "epoch", "lease\nleft")
    table = _table("Workers", ("worker", "state"), numbers, ("transport", "waiting for"))
    for worker in workers:
        _add(
            table,
            f"{worker.name}{' (chief)' * worker.chief}",
            worker.state,
            f"{worker.steps:,}",
            f"{worker.dropped:,}",
            _NONE if worker.mean_staleness is None else f"{worker.mean_staleness:.2f}",
            _NONE if worker.loss is None else f"{worker.loss:.4f}",
            str(worker.epoch or _NONE),
            _NONE if worker.lease_left is None else f"{worker.lease_left:.1f} s",
            worker.tensor_transport or _NONE,
            worker.waiting_for or _NONE,
        )
    return table


def _variables(job: JobStatus, *, more: bool = True) -> Table:
    numbers = ("version", *["updates", "memory"] * more)
    table = _table("Variables", ("variable", "dtype and shape", "shards"), numbers, ("slots", "optimizer"))
    for column in table.columns:  # the optimizer gets the remaining width
        column.max_width = None if more else _MAX_WIDTH.get(str(column.header))
    for variable in job.variables:
        _add(
            table,
            variable.spec.name,
            f"{variable.spec.dtype}{list(variable.spec.shape)}{' table' * variable.table}",
            ",".join(map(str, variable.shards)),
            _range(variable.versions),
            *[_range(variable.updates), size(variable.nbytes)] * more,
            ", ".join(variable.slots) or _NONE,
            _optimizer(variable.optimizer, job.global_step),
        )
    return table


def _changes(changes: Sequence[Change]) -> Table:
    table = _table("Changes of hyperparameters", (), ("after step",), ("worker", "variables", "optimizer"))
    for change in changes:
        text = _optimizer(change.optimizer, None)
        _add(table, f"{change.global_step:,}", change.worker, ", ".join(change.names), text)
    return table


def size(nbytes: float) -> str:
    """Bytes in the largest fitting unit of B, KiB, MiB, GiB, TiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(nbytes, 0 if unit == "B" else 1) < 1024:
            return f"{nbytes:.{0 if unit == 'B' else 1}f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.1f} TiB"


def _range(counts: Sequence[int]) -> str:
    """One number, or a range: partitions may briefly be at different versions."""
    least, most = min(counts), max(counts)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _optimizer(spec: UpdateSpec | None, global_step: int | None) -> str:
    """Kind and fields; of a schedule also its value at `global_step`, for the next push."""
    if spec is None:
        return _NONE
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    words = [spec.kind, *(f"{name}={value}" for name, value in fields.items())]
    for name, value in fields.items():
        if global_step is not None and isinstance(value, Schedule):
            words.append(f"({name.replace('_', ' ')} now {value.at(global_step):.6g})")
    return " ".join(words)
