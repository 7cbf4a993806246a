"""Shows a job's report, once or again and again: as tables, as a live display, or as lines of JSON.

Owns the clock. May import rich, click and the modules beside it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeAlias

import click
from rich.console import Console
from rich.live import Live

from psserver.cli.job_status import JobReport, put_together
from psserver.cli.status_client import Shards
from psserver.cli.status_json import plain
from psserver.cli.status_tables import view

Show: TypeAlias = Callable[[JobReport], object]

#: Columns where there is no terminal, so that no line is broken for a program that reads them.
_WIDE = 1000


def show_once(job: JobReport, as_json: bool) -> None:
    """Tables, or JSON with indents."""
    if as_json:
        _print_json(job, indent=2)
    else:
        _console().print(view(job))


def keep_showing(shards: Shards, timeout: float, every: float, show: Show) -> NoReturn:
    """Asks and shows every so many seconds, or as fast as the answers come, until an exception (Ctrl-C) ends it."""
    while True:
        begin = time.monotonic()
        show(put_together(shards.ask(timeout)))
        time.sleep(max(0.0, begin + every - time.monotonic()))


@contextmanager
def display(as_json: bool) -> Iterator[Show]:
    """A function that shows one report after another: in place on a terminal, one below the other elsewhere."""
    console = _console()
    if as_json:
        yield _print_json
    elif console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda job: live.update(view(job), refresh=True)
    else:
        yield lambda job: console.print(view(job), "")


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def _print_json(job: JobReport, indent: int | None = None) -> None:
    click.echo(json.dumps(plain(job, time.time()), indent=indent, allow_nan=False))
