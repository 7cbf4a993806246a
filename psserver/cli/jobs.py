"""`psserver jobs` and `psserver reset`: the jobs of standing servers as a table or JSON, and an end of the last."""

import json
from collections.abc import Sequence

import click

from psjob.status.job_status import JobStatus
from psjob.status.status_client import StatusClient
from psjob.terminal.fitted_table import Column, FittedTable, make_console
from psserver.cli.status import plain
from pswire.errors import ConfigurationError, Unavailable
from pswire.messages import Emptied, Job, Reset
from pswire.security.credentials import NO_CREDENTIALS, Credentials


def _name(job: Job) -> str:
    return f"{job.name or '–'}, session {job.session}" if job.session > 1 else job.name or "–"


_COLUMNS = (
    Column("job", lambda one: str(one.job.number), number=True),
    Column("name", lambda one: _name(one.job), shortest=8),
    Column("state", lambda one: one.state),
    Column("steps", lambda one: f"{one.global_step:,}", number=True),
    Column("workers", lambda one: f"{one.workers:,}", number=True),
    Column("epochs", lambda one: f"{one.epochs:,}", number=True),
    Column("cost", lambda one: "–" if one.cost is None else f"{one.cost:.4f}", number=True),
)


def show_jobs(
    addresses: Sequence[str], timeout: float, credentials: Credentials = NO_CREDENTIALS, *, as_json: bool
) -> None:
    """Print the jobs of these servers. Raises `Unavailable` if shard 0 does not answer."""
    with StatusClient(addresses, credentials) as servers:
        jobs = _ask(servers, timeout).jobs
    if as_json:
        click.echo(json.dumps([plain(one.job) | plain(one) | {"job": str(one.job)} for one in jobs], indent=2))
        return
    make_console().print(FittedTable(_COLUMNS, jobs))


def reset(addresses: Sequence[str], timeout: float, credentials: Credentials = NO_CREDENTIALS, *, force: bool) -> str:
    """End the job of these servers; return a line about it.

    Raises `ConfigurationError` if they are not all shards of one job, and `Unavailable` if one does not answer, or
    workers are live and `force` is not given; before anything is done.
    """
    with StatusClient(addresses, credentials) as servers:
        return _reset(servers, timeout, force=force)


def _reset(servers: StatusClient, timeout: float, *, force: bool) -> str:
    status = _ask(servers, timeout)
    reports = [answer.report for answer in status.answers if answer.report is not None]
    if sorted(report.shard for report in reports) != list(range(status.shards)):
        named = ", ".join(str(report.shard) for report in reports)
        raise ConfigurationError(f"these are shards {named} of {status.shards}: name all of them, each once")
    live = [worker.name for worker in status.workers if worker.state == "live"]
    if live and not force:
        raise Unavailable(f"{status.jobs[-1].job} is running with {', '.join(live)}: stop it first, or use --force")
    number = max(report.jobs[-1].job.number for report in reports) + 1
    for place in sorted(range(len(reports)), key=lambda place: reports[place].shard):
        servers.call(place, Reset(number, force), Emptied, timeout)  # shard 0 first: workers learn the job from it
    ended = status.jobs[-1]
    return f"{ended.job} was {ended.state} at step {ended.global_step:,}; the servers are empty"


def _ask(servers: StatusClient, timeout: float) -> JobStatus:
    """The status, from all shards. Raises `Unavailable`."""
    servers.addresses.find(timeout)
    status = servers.ask(timeout)
    if silent := [answer.problem for answer in status.answers if answer.report is None]:
        raise Unavailable("\n".join(silent))
    return status
