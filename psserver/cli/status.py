"""`psserver status`: shows a job once or repeatedly, as tables, as a live display, or as JSON."""

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
from rich.text import Text

from psjob.status.job_status import JobStatus, JobWorker
from psjob.status.poller import Poller
from psjob.status.shard_table import NONE, STATE_STYLES, shard_table, size
from psjob.status.status_client import StatusClient
from psjob.terminal.bars import bar
from psjob.terminal.fitted_table import Column, FittedTable, make_console, printable
from pswire.errors import Unavailable
from pswire.messages import AcceptedPoint, MinimizationStatus, QueueStatus
from pswire.optimizers import UpdateSpec
from pswire.plurals import pluralize
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.specs.schedules import Schedule
from pswire.specs.spec import to_plain

#: Cells of a bar.
_BAR_WIDTH = 12
#: Fields of workers that are shown for each shard only.
_OF_SHARDS = ("staleness", "staleness_sum")
#: Names of variables that are listed.
_MOST_NAMES = 6


def show_once(
    addresses: Sequence[str], timeout: float, credentials: Credentials = NO_CREDENTIALS, *, as_json: bool
) -> bool:
    """Print the status of a job as tables or indented JSON; returns whether all its shards answered.

    Raises:
        Unavailable: no shard answered.
    """
    with StatusClient(addresses, credentials) as client:
        job = client.ask(timeout)
    silent = [answer.problem for answer in job.answers if answer.report is None]
    if len(silent) == len(job.answers):
        raise Unavailable("\n".join(silent))
    if as_json:
        _print_json(job, indent=2)
    else:
        make_console().print(tables(job))
    return not silent


def show_repeatedly(
    addresses: Sequence[str],
    timeout: float,
    every: float,
    credentials: Credentials = NO_CREDENTIALS,
    *,
    as_json: bool,
) -> None:
    """Print the status at this interval in seconds, or as fast as the answers come, until Ctrl-C."""
    with StatusClient(addresses, credentials) as client, suppress(KeyboardInterrupt), _display(as_json) as show:
        Poller(client.ask, lambda view: view.latest and show(view.latest), interval=every, timeout=timeout).run()


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
        case JobWorker():
            names = [field.name for field in dataclasses.fields(value) if field.name not in _OF_SHARDS]
            return {name: plain(getattr(value, name)) for name in names} | {"lease_left": value.lease}
    if not dataclasses.is_dataclass(value):
        return value
    data = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return data.pop("spec", {}) | data


def tables(job: JobStatus, *, servers: bool = True) -> RenderableType:
    """The line and all tables that have rows; the table of shards only if they are `servers`.

    The reasons alone while no shard answers.
    """
    problems = [_text(f"warning: {problem}", "yellow") for problem in job.problems]
    if all(answer.report is None for answer in job.answers):
        return Group(*problems)
    parts: list[RenderableType] = [_text(job_line(job)), *problems]
    for table in (
        shard_table(job.answers if servers else (), "Shards"),
        _table("Workers", _WORKERS, job.workers),
        _table("Data queues", _QUEUES, job.queues),
        _table("Minimizations", _MINIMIZATIONS, job.minimizations),
        _Variables(job),
        _table("Changes of hyperparameters", _CHANGES, job.changes),
    ):
        if table.rows:
            parts += ["", table]
    if job.omitted:
        parts += ["", *[_text(line, "dim") for line in job.omitted]]
    return Group(*parts)


def _table(title: str, columns: Sequence[Column], rows: Sequence[object]) -> FittedTable:
    return FittedTable(columns, rows, title, lambda column, text, row: STATE_STYLES.get(text, ""))


class _Variables:
    """The table of the variables; where it would be too wide with them, optimizers have a table of their own.

    There each is listed once, with all its hyperparameters and variables.
    """

    def __init__(self, job: JobStatus) -> None:
        self.rows, self._step = job.variables, job.global_step
        self._optimizers: dict[str, list[str]] = {}
        for one in job.variables:
            if one.optimizer is not None:
                self._optimizers.setdefault(_optimizer(one.optimizer, self._step), []).append(one.spec.name)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One table, or two."""
        whole = (*_VARIABLES, Column("optimizer", lambda one: _optimizer(one.optimizer, self._step)))
        table = _table("Variables", whole, self.rows)
        if table.width <= options.max_width:
            yield table
            return
        kind = Column("optimizer", lambda one: NONE if one.optimizer is None else one.optimizer.kind, 3)
        yield _table("Variables", (*_VARIABLES, kind), self.rows)
        if self._optimizers:
            yield ""
            yield _table("Optimizers", _OPTIMIZERS, list(self._optimizers.items()))


def job_line(job: JobStatus) -> str:
    """The job in one line."""
    clipped = sum(worker.clipped for worker in job.workers)
    present = [f"{one.job}: {one.state}" for one in job.jobs[-1:] if one.job.name]
    parts = (
        *present,
        *[f"stopped by {job.stopped}"] * bool(job.stopped),
        f"global step {job.global_step:,}",
        pluralize(job.shards, "shard"),
        f"consistency {job.consistency or NONE}",
        f"staleness handling {job.handling or NONE}",
        f"{job.repeated:,} repeated",
        f"{job.dropped:,} dropped",
        *[f"{clipped:,} clipped"] * (clipped > 0),
        *[f"{job.half_pushes:,} half-applied"] * (job.half_pushes > 0),
        *[f"{job.lost_pushes:,} lost"] * (job.lost_pushes > 0),
    )
    return " · ".join(parts)


def _text(words: str, style: str = "") -> Text:
    return Text(printable(words), style)


def _range(counts: Sequence[int]) -> str:
    """One number, or a range: partitions may briefly be at different versions."""
    return " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


def _optimizer(spec: UpdateSpec | None, global_step: int | None) -> str:
    """Kind and fields; of a schedule also its value at `global_step`, for the next push."""
    if spec is None:
        return NONE
    fields = spec.hyperparameters()
    words = [spec.kind, *(f"{name}={value}" for name, value in fields.items())]
    for name, value in fields.items():
        if global_step is not None and isinstance(value, Schedule):
            words.append(f"({name.replace('_', ' ')} now {value.at(global_step):.6g})")
    return " ".join(words)


def _epoch(queue: QueueStatus) -> str:
    """The epoch in progress, and how many there are; none of iterables, which each worker reads on its own."""
    if not queue.spec.size:
        return NONE
    return f"{queue.epoch:,} of {queue.spec.epochs:,}" if queue.spec.epochs else f"{queue.epoch:,}"


def _done(queue: QueueStatus) -> str:
    """Examples, or batches of a queue of unknown size; and of how many, over all epochs."""
    unit = "" if queue.spec.size else " batches"
    return f"{queue.done:,}{unit}" if queue.spec.total is None else f"{queue.done:,} of {queue.spec.total:,}{unit}"


def _progress(queue: QueueStatus) -> str:
    """A bar with its percentage; nothing for a queue without an end."""
    if not queue.spec.total:
        return NONE
    fraction = queue.done / queue.spec.total
    return f"{''.join(bar(fraction, _BAR_WIDTH))} {int(100 * fraction)} %"


def _names(names: Sequence[str], others: int = 0) -> str:
    """The first names of variables, and the number of the others, including `others` without names."""
    listed, others = ", ".join(names[:_MOST_NAMES]), others + max(0, len(names) - _MOST_NAMES)
    return f"{listed} and {others:,} others" if others else listed


def _of_point(one: MinimizationStatus, text: Callable[[AcceptedPoint], str]) -> str:
    """A text about the last accepted point, if there is one."""
    return NONE if one.point is None else text(one.point)


_WORKERS = (
    Column("worker", lambda worker: f"{worker.name}{' (chief)' * worker.chief}", shortest=16),
    Column("state", lambda worker: worker.state),
    Column("steps", lambda worker: f"{worker.steps:,}", number=True),
    Column("dropped", lambda worker: f"{worker.dropped:,}", 6, number=True),
    Column("mean\nstaleness", lambda worker: _number(worker.mean_staleness, ".2f"), 5, number=True),
    Column("loss", lambda worker: _number(worker.loss, ".4f"), 2, number=True),
    Column("epoch", lambda worker: str(worker.epoch or NONE), 4, number=True),
    Column("lease\nleft", lambda worker: _number(worker.lease, ".1f", " s"), 3, number=True),
    Column("transport", lambda worker: worker.tensor_transport or NONE, 7, shortest=13),
    Column("waiting for", lambda worker: worker.waiting_for or NONE, shortest=16),
)

_QUEUES = (
    Column("data queue", lambda queue: queue.spec.name, shortest=14),
    Column("epoch", _epoch, number=True),
    Column("size", lambda queue: f"{queue.spec.size:,}" if queue.spec.size else "unknown", 1, number=True),
    Column("done", _done, number=True),
    Column("blocks\nout", lambda queue: f"{queue.blocks_out:,}", 2, number=True),
    Column("progress", _progress, 3),
)

_MINIMIZATIONS = (
    Column("minimization", lambda one: one.name, shortest=14),
    Column("state", lambda one: "over" if one.end else "running"),
    Column("iteration", lambda one: _of_point(one, lambda point: f"{point.iterations:,}"), 2, number=True),
    Column("loss", lambda one: _of_point(one, lambda point: f"{point.loss:.6g}"), number=True),
    Column("gradient", lambda one: _of_point(one, lambda point: f"{point.gradient:.1e}"), 3, number=True),
    Column("step", lambda one: _of_point(one, lambda point: f"{point.step:.3g}"), 4, number=True),
    Column("evaluations", lambda one: _of_point(one, lambda point: f"{point.evaluations:,}"), number=True),
    Column("portions", lambda one: f"{one.counted:,} of {one.portions:,}", number=True),
    Column("out", lambda one: f"{one.out:,}", number=True),
    Column("claimed", lambda one: f"{one.claimed:,}", number=True),
    Column("backups", lambda one: f"{one.backups:,}", 2, number=True),
    Column("backups\nfirst", lambda one: f"{one.backups_won:,}", 2, number=True),
)

_VARIABLES = (
    Column("variable", lambda one: one.spec.name, shortest=14),
    Column("dtype and shape", lambda one: f"{one.spec.dtype}{list(one.spec.shape)}{' table' * one.table}", shortest=15),
    Column("shards", lambda one: ",".join(map(str, one.shards)), 4),
    Column("version", lambda one: _range(one.versions), number=True),
    Column("updates", lambda one: _range(one.updates), 7, number=True),
    Column("memory", lambda one: size(one.nbytes), 6, number=True),
    Column("slots", lambda one: ", ".join(one.slots) or NONE, 5, shortest=10),
)

_OPTIMIZERS = (
    Column("optimizer", lambda one: one[0], shortest=34),
    Column("variables", lambda one: _names(one[1]), shortest=18),
)

_CHANGES = (
    Column("after step", lambda change: f"{change.global_step:,}", number=True),
    Column("worker", lambda change: change.worker, shortest=12),
    Column("variables", lambda change: _names(change.names, change.others), shortest=12),
    Column("optimizer", lambda change: _optimizer(change.optimizer, None), shortest=18),
)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return NONE if value is None else f"{value:{form}}{unit}"
