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
from rich.console import Console
from rich.live import Live

from psserver.cli.status_tables import tables
from pswire.errors import Unavailable
from pswire.job_status import JobStatus
from pswire.optimizers import UpdateSpec, to_plain
from pswire.status_client import StatusClient

#: Columns where there is no terminal, so that no line is wrapped for a program that reads them.
_WIDE = 1000


def show_once(addresses: Sequence[str], timeout: float, *, as_json: bool) -> bool:
    """Print the status of a job as tables or indented JSON; whether all its shards answered.

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
    """A function that shows one status after another: in place on a terminal, one below the other elsewhere."""
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
    return console if console.is_terminal else Console(width=_WIDE)


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
