"""The picture of a job for a terminal of a given size: header, bar, workers, shards, and the newest events. Pure."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from psjob.status.job_status import JobWorker
from psjob.status.job_view import JobView
from psjob.status.shard_table import NONE, shard_table
from psjob.terminal.bars import bar, sparkline
from psjob.terminal.fitted_table import Column, FittedTable, printable
from pswire.messages import EventReport
from pswire.plurals import pluralize
from psworker.launch.display.colors import name_style, state_style
from psworker.launch.display.rows import chosen, fitted_rows
from psworker.progress.text import clock, fit, rate_text, step_line

#: The width of a column of numbers, so that they do not move while they grow; cells of a sparkline and of a bar.
_NUMBER_WIDTH, _SPARK_WIDTH, _MOST_BAR = 6, 8, 40
#: Lines of findings and events together.
MOST_NOTES = 3


class Note(NamedTuple):
    """A line about what has happened, or what a guard has found."""

    text: str
    warning: bool = False


def dashboard(
    job: JobView, width: int, height: int, findings: Sequence[Note] = (), *, title: str = "", unicode: bool = True
) -> RenderableType:
    """The picture, in at most `height` lines and `width` columns; less important parts are left out.

    `findings` come before events of the job. `title` is the name of the program, `unicode` whether the terminal has
    block characters.
    """
    answers = () if job.job is None else job.job.answers
    notes = [*findings, *map(_event_note, job.events)][:MOST_NOTES]
    rows = fitted_rows(height, len(job.workers), len(answers), len(notes))
    blocks: list[list[RenderableType]] = [[_bar_line(job, width, unicode=unicode)]]
    if rows.header:
        blocks[0].insert(0, _header(job, width, title))
    shown, more = chosen(job, rows.workers)
    if rows.workers:
        blocks.append([table(job, shown, unicode=unicode)] if shown else [])
        if more:
            blocks[-1].append(Text(_cut(f"  {more}" if shown else more[4:], width), "minor"))
    if rows.shards:
        some = answers if len(answers) <= rows.shards else answers[: rows.shards - 1]
        shards = shard_table(some, short=True)._replace(style=_style)
        blocks.append([shards] if some else [])
        if len(some) < len(answers):
            blocks[-1].append(Text(f"  and {len(answers) - len(some)} more shards", "minor"))
    if rows.notes:
        blocks.append([Text(_cut(printable(one.text), width), _note_style(one)) for one in notes[: rows.notes]])
    lines: list[RenderableType] = []
    for block in blocks:
        lines += ([""] if lines and rows.gaps else []) + block
    return Group(*lines)


def table(job: JobView, workers: Sequence[JobWorker] | None = None, *, unicode: bool = True) -> FittedTable:
    """One row per worker, by default of all.

    Costs of the past, drops, tensor transports and waits have columns only if any worker of the job has them, so that
    the columns stay while other workers are shown.
    """
    workers = job.workers if workers is None else workers
    costs = {one.name: job.costs(one) for one in workers}
    columns = [
        Column("worker", lambda one: one.name, shortest=12, cut=True),
        Column("state", lambda one: one.state, 1),
        Column("epoch", lambda one: f"{one.epoch or NONE}", 5, number=True, least=_NUMBER_WIDTH),
        Column("steps", lambda one: f"{one.steps:,}", number=True, least=_NUMBER_WIDTH),
        Column("steps/s", lambda one: _rate(job, one), 6, number=True),
        Column("cost", lambda one: _number(one.cost, ".4f"), 3, number=True, least=_NUMBER_WIDTH),
    ]
    if any(len(job.costs(one)) > 1 for one in job.workers):
        columns.append(Column("trend", lambda one: sparkline(costs[one.name], _SPARK_WIDTH, unicode=unicode), 9))
    columns.append(Column("staleness", lambda one: _number(one.mean_staleness, ".1f"), 7, number=True))
    if any(status.dropped for status in job.workers):
        columns.append(Column("dropped", lambda one: f"{one.dropped:,}", 4, number=True))
    if any(status.tensor_transport for status in job.workers):
        columns.append(Column("transport", lambda one: one.tensor_transport or NONE, 8))
    if any(status.waiting_for for status in job.workers):
        columns.append(Column("waiting for", lambda one: one.waiting_for or NONE, 2, shortest=24, cut=True))
    numbers = {worker.name: number for number, worker in enumerate(job.workers)}
    of_row = [name_style(numbers[worker.name]) for worker in workers]

    def style(column: Column, text: str, row: int) -> str:
        return of_row[row] if column.header in ("worker", "trend") else _style(column, text, row)

    return FittedTable(columns, workers, style=style)


def _style(column: Column, text: str, row: int) -> str:
    return state_style(text)


def _rate(job: JobView, worker: JobWorker) -> str:
    """Steps per second; 0 of a worker that is not live, although it was in the last seconds."""
    return rate_text(job.steps_per_second_of(worker) or 0.0 if worker.state == "live" else 0.0)


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else f"{value:{form}}"


def _header(job: JobView, width: int, title: str) -> Text:
    """The job in a line: `0:12 · train.py · 3 of 3 workers live, 2 shards · async`."""
    status, live = job.job, sum(worker.state == "live" for worker in job.workers)
    parts = [(clock(job.seconds), 0), (title, 2), (f"{live} of {len(job.workers)} workers live", 1)]
    if status is not None:
        parts.append((pluralize(status.shards, "shard"), 4))
        parts.append((status.consistency, 3))
        parts.append((f"staleness {status.handling}" if status.handling not in ("", "none") else "", 5))
    return Text(fit([(printable(text), rank) for text, rank in parts], width), "bold")


def _bar_line(job: JobView, width: int, *, unicode: bool) -> Text:
    """The bar with its percentage, if the end of a data queue is known, and the line of `step_line`."""
    if (fraction := job.fraction) is None or not job.step or job.minimization is not None:
        return Text(step_line(job, width))
    done, left = bar(fraction, min(_MOST_BAR, width // 4), unicode=unicode)
    percentage = f" {int(100 * fraction)} % · "
    rest = step_line(job, width - len(done + left + percentage))
    return Text.assemble((done, "bar"), (left, "minor"), (percentage, "bold"), rest)


def _event_note(event: EventReport) -> Note:
    return Note(f"{time.strftime('%H:%M:%S', time.localtime(event.time))} {event.text}", event.warning)


def _note_style(note: Note) -> str:
    return "warning" if note.warning else "minor"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
