"""`psserver status`: shows a job once or repeatedly, as tables, as a live display, or as JSON."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pswire.errors import Unavailable
from pswire.job_status import JobStatus, ShardAnswer
from pswire.messages import QueueStatus, StatusReport, StorageStatus
from pswire.optimizers import UpdateSpec
from pswire.specs.schedules import Schedule
from pswire.specs.spec import to_plain
from pswire.status_client import StatusClient

#: Width without a terminal, so that lines are not wrapped for programs that read them.
_NON_TERMINAL_WIDTH = 1000

_NONE = "–"
_ANY_WIDTH = 10_000
_WORDS, _NUMBER = {"overflow": "fold"}, {"justify": "right", "no_wrap": True}
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
        make_console().print(tables(job))
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
    console = make_console()
    if as_json:
        yield _print_json
    elif console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda job: live.update(tables(job), refresh=True)
    else:
        yield lambda job: console.print(tables(job), "")


def make_console() -> Console:
    """Standard output; without a terminal it is wide enough that no line is wrapped."""
    console = Console()
    return console if console.is_terminal else Console(width=_NON_TERMINAL_WIDTH)


def _print_json(job: JobStatus, indent: int | None = None) -> None:
    click.echo(json.dumps(to_json(job, time.time()), indent=indent, allow_nan=False))


def to_json(job: JobStatus, at: float) -> dict[str, Any]:
    """The job as JSON data: its variables and workers, and under `shards` the report of each server.

    `at` is the time in seconds since 1970. A number that is NaN or infinite becomes None, since JSON has none.
    """
    data = {"time": at, **plain(job)}
    data["shards"] = [
        {"address": answer["address"], **(answer["report"] or {"problem": answer["problem"]})}
        for answer in data.pop("answers")
    ]
    return data


def plain(value: Any) -> Any:  # noqa: ANN401 - data of any kind
    """JSON data; a variable has the fields of its spec among its own."""
    match value:
        case dict():
            return {key: plain(one) for key, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case float() if not math.isfinite(value):
            return None
        case UpdateSpec():
            return plain(to_plain(value))
    if not dataclasses.is_dataclass(value):
        return value
    data = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return data.pop("spec", {}) | data


def tables(job: JobStatus, *, servers: bool = True) -> RenderableType:
    """The line and all tables that have rows; that of the shards only if they are `servers`."""
    parts: list[RenderableType] = [_text(job_line(job))]
    parts += [_text(f"warning: {problem}", "yellow") for problem in job.problems]
    shards: tuple[_Column, ...] = _SHARDS
    if any(answer.report is not None and answer.report.storage.folder for answer in job.answers):
        shards = (*_SHARDS, *_STORAGE)
    optimizer = _Column("optimizer", lambda one: _optimizer(one.optimizer, job.global_step))
    for table in (
        _Table("Shards", shards, job.answers if servers else ()),
        _Table("Workers", _WORKERS, job.workers),
        _Table("Data queues", _QUEUES, job.queues),
        _Table("Variables", (*_VARIABLES, optimizer), job.variables),
        _Table("Changes of hyperparameters", _CHANGES, job.changes),
    ):
        if table.rows:
            parts += ["", table]
    return Group(*parts)


def job_line(job: JobStatus) -> str:
    """The job in one line."""
    present = [f"{one.job}: {one.state}" for one in job.jobs[-1:] if one.job.name]
    parts = (
        *present,
        *[f"stopped by {job.stopped}"] * bool(job.stopped),
        f"global step {job.global_step:,}",
        f"{job.shards} shard{'s' * (job.shards != 1)}",
        f"consistency {job.consistency or _NONE}",
        f"staleness handling {job.handling or _NONE}",
        f"{job.repeated:,} repeated",
        f"{job.dropped:,} dropped",
        *[f"{job.half_pushes:,} half-applied"] * (job.half_pushes > 0),
        *[f"{job.lost_pushes:,} lost"] * (job.lost_pushes > 0),
    )
    return " · ".join(parts)


class _Column(NamedTuple):
    """A column of a table: its header, the cell of a row, and how rich lays it out."""

    header: str
    cell: Callable[[Any], str]
    layout: Mapping[str, Any] = _WORDS
    optional: bool = False  # left out if the whole table is too wide
    narrow: int | None = None  # its width then


class _Table(NamedTuple):
    """A table that shows fewer columns if all are too wide."""

    title: str
    columns: Sequence[_Column]
    rows: Sequence[object]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._drawn(narrow=False)
        width = console.measure(table, options=options.update(max_width=_ANY_WIDTH)).maximum
        yield table if width <= options.max_width else self._drawn(narrow=True)

    def _drawn(self, *, narrow: bool) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.title, table.title_justify, table.title_style = self.title, "left", "bold"
        columns = [column for column in self.columns if not (narrow and column.optional)]
        for column in columns:
            table.add_column(column.header, max_width=column.narrow if narrow else None, **column.layout)
        for row in self.rows:
            cells = [column.cell(row) for column in columns]
            table.add_row(*(_text(cell, _STYLES.get(cell, "")) for cell in cells))
        return table


def _text(words: str, style: str = "") -> Text:
    """Text without control characters: a worker's name must not move the cursor."""
    return Text("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words), style)


def size(nbytes: float) -> str:
    """Bytes in the largest fitting unit of B, KiB, MiB, GiB, TiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(nbytes, 0 if unit == "B" else 1) < 1024:
            return f"{nbytes:.{0 if unit == 'B' else 1}f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.1f} TiB"


def _range(counts: Sequence[int]) -> str:
    """One number, or a range: partitions may briefly be at different versions."""
    return " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


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


def _checkpoint(storage: StorageStatus) -> str:
    """The last one and its age; or why there is none."""
    if not storage.folder:
        return _NONE
    if storage.writing and storage.waiting_for:
        return f"{storage.writing:,} waits for {storage.waiting_for}"
    return f"{storage.last:,}, {storage.age:,.0f} s ago"


def _journal(storage: StorageStatus) -> str:
    return size(storage.journal_bytes) if storage.journal else _NONE


def _epoch(queue: QueueStatus) -> str:
    """The epoch in progress, and how many there are; none of iterables, which each worker reads on its own."""
    if not queue.spec.size:
        return _NONE
    return f"{queue.epoch:,} of {queue.spec.epochs:,}" if queue.spec.epochs else f"{queue.epoch:,}"


def _done(queue: QueueStatus) -> str:
    """Examples, or batches of a queue of unknown size; and of how many, over all epochs."""
    unit = "" if queue.spec.size else " batches"
    return f"{queue.done:,}{unit}" if queue.spec.total is None else f"{queue.done:,} of {queue.spec.total:,}{unit}"


def _of_report(cell: Callable[[StatusReport], str], silent: str = _NONE) -> Callable[[ShardAnswer], str]:
    return lambda answer: silent if answer.report is None else cell(answer.report)


_SHARDS = (
    _Column("shard", _of_report(lambda report: f"{report.shard}/{report.shards}", "?"), _WORDS | {"no_wrap": True}),
    _Column("address", lambda answer: answer.address, _WORDS | {"min_width": 15}),
    _Column("step", _of_report(lambda report: f"{report.global_step:,}", "silent"), _NUMBER),
    _Column("vars", _of_report(lambda report: f"{len(report.variables):,}"), _NUMBER),
    _Column("memory", _of_report(lambda report: size(report.nbytes)), _NUMBER),
    _Column("pushes/s", _of_report(lambda report: f"{report.traffic.pushes:,.1f}"), _NUMBER, optional=True),
    _Column("in/s", _of_report(lambda report: size(report.traffic.bytes_in)), _NUMBER, optional=True),
    _Column("out/s", _of_report(lambda report: size(report.traffic.bytes_out)), _NUMBER, optional=True),
    _Column("stale\np50", _of_report(lambda report: f"{report.staleness.p50:,}"), _NUMBER),
    _Column("p99", _of_report(lambda report: f"{report.staleness.p99:,}"), _NUMBER),
    _Column("live", _of_report(lambda report: f"{sum(one.state == 'live' for one in report.workers):,}"), _NUMBER),
)

_STORAGE = (
    _Column("checkpoint", _of_report(lambda report: _checkpoint(report.storage)), _WORDS | {"no_wrap": True}),
    _Column("journal", _of_report(lambda report: _journal(report.storage)), _NUMBER),
)

_WORKERS = (
    _Column("worker", lambda worker: f"{worker.name}{' (chief)' * worker.chief}"),
    _Column("state", lambda worker: worker.state),
    _Column("steps", lambda worker: f"{worker.steps:,}", _NUMBER),
    _Column("dropped", lambda worker: f"{worker.dropped:,}", _NUMBER),
    _Column("mean\nstaleness", lambda worker: _number(worker.mean_staleness, ".2f"), _NUMBER),
    _Column("loss", lambda worker: _number(worker.loss, ".4f"), _NUMBER),
    _Column("epoch", lambda worker: str(worker.epoch or _NONE), _NUMBER),
    _Column("lease\nleft", lambda worker: _number(worker.lease_left, ".1f", " s"), _NUMBER),
    _Column("transport", lambda worker: worker.tensor_transport or _NONE),
    _Column("waiting for", lambda worker: worker.waiting_for or _NONE),
)

_QUEUES = (
    _Column("data queue", lambda queue: queue.spec.name),
    _Column("epoch", _epoch, _NUMBER),
    _Column("size", lambda queue: f"{queue.spec.size:,}" if queue.spec.size else "unknown", _NUMBER),
    _Column("done", _done, _NUMBER),
    _Column("blocks\nout", lambda queue: f"{queue.blocks_out:,}", _NUMBER),
)

_VARIABLES = (
    _Column("variable", lambda one: one.spec.name, narrow=14),
    _Column("dtype and shape", lambda one: f"{one.spec.dtype}{list(one.spec.shape)}{' table' * one.table}", narrow=13),
    _Column("shards", lambda one: ",".join(map(str, one.shards))),
    _Column("version", lambda one: _range(one.versions), _NUMBER),
    _Column("updates", lambda one: _range(one.updates), _NUMBER, optional=True),
    _Column("memory", lambda one: size(one.nbytes), _NUMBER, optional=True),
    _Column("slots", lambda one: ", ".join(one.slots) or _NONE, narrow=10),
)

_CHANGES = (
    _Column("after step", lambda change: f"{change.global_step:,}", _NUMBER),
    _Column("worker", lambda change: change.worker),
    _Column("variables", lambda change: ", ".join(change.names)),
    _Column("optimizer", lambda change: _optimizer(change.optimizer, None)),
)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return _NONE if value is None else f"{value:{form}}{unit}"
