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
from pswire.job_status import JobStatus, JobVariable, ShardAnswer
from pswire.messages import Change, VariableStatus
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
    variables = [_variable(variable) for variable in job.variables]
    for variable in variables:
        del variable["global_step"]
    data = {
        "time": at,
        **{name: getattr(job, name) for name in fields},
        "variables": variables,
        "workers": [dataclasses.asdict(worker) for worker in job.workers],
        "epochs": [dataclasses.asdict(epoch) for epoch in job.epochs],
        "changes": [_change(change) for change in job.changes],
        "shards": [_shard(answer) for answer in job.answers],
    }
    finite: dict[str, Any] = _finite(data)
    return finite


def _shard(answer: ShardAnswer) -> dict[str, Any]:
    if answer.report is None:
        return {"address": answer.address, "problem": answer.problem}
    return {"address": answer.address, **dataclasses.asdict(answer.report)} | {
        "variables": [_variable(variable) for variable in answer.report.variables],
        "changes": [_change(change) for change in answer.report.changes],
    }


def _variable(variable: JobVariable | VariableStatus) -> dict[str, Any]:
    data = dataclasses.asdict(variable)
    del data["spec"]
    return dataclasses.asdict(variable.spec) | data | {"optimizer": _optimizer(variable.optimizer)}


def _change(change: Change) -> dict[str, Any]:
    return dataclasses.asdict(change) | {"optimizer": _optimizer(change.optimizer)}


def _optimizer(spec: UpdateSpec | None) -> dict[str, Any] | None:
    return None if spec is None else to_plain(spec)


def _finite(data: Any) -> Any:  # noqa: ANN401 - plain data of any kind
    match data:
        case dict():
            return {key: _finite(value) for key, value in data.items()}
        case list() | tuple():
            return [_finite(value) for value in data]
        case float() if not math.isfinite(data):
            return None
    return data
