"""`psserver jobs` and `psserver reset`: the jobs of standing servers as a table or JSON, and an end of the last."""

import json
from collections.abc import Sequence

import click

from psserver.cli.status import plain
from pswire.channel import open_channel
from pswire.errors import ConfigurationError, Unavailable
from pswire.fitted_table import Column, FittedTable, make_console
from pswire.job_status import JobStatus
from pswire.messages import Emptied, Reset
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.status_client import StatusClient
from pswire.unary_call import call
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub

_COLUMNS = (
    Column("job", lambda one: str(one.job.number), number=True),
    Column("name", lambda one: one.job.name or "–", shortest=8),
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
    jobs = _ask(addresses, timeout, credentials).jobs
    if as_json:
        click.echo(json.dumps([plain(one.job) | plain(one) | {"job": str(one.job)} for one in jobs], indent=2))
        return
    make_console().print(FittedTable(_COLUMNS, jobs))


def reset(addresses: Sequence[str], timeout: float, credentials: Credentials = NO_CREDENTIALS, *, force: bool) -> str:
    """End the job of these servers; the line that says so.

    Raises `ConfigurationError` if they are not all shards of one job, and `Unavailable` if one does not answer, or
    workers are live and `force` is not given; before anything is done.
    """
    status = _ask(addresses, timeout, credentials)
    reports = [answer.report for answer in status.answers if answer.report is not None]
    if sorted(report.shard for report in reports) != list(range(status.shards)):
        named = ", ".join(str(report.shard) for report in reports)
        raise ConfigurationError(f"these are shards {named} of {status.shards}: name all of them, each once")
    live = [worker.name for worker in status.workers if worker.state == "live"]
    if live and not force:
        raise Unavailable(f"{status.jobs[-1].job} is running with {', '.join(live)}: stop it first, or use --force")
    number = max(report.jobs[-1].job.number for report in reports) + 1
    in_order = sorted(zip(reports, addresses, strict=True), key=lambda pair: pair[0].shard)
    for _, address in in_order:  # shard 0 first: it tells workers which job there is
        _reset_shard(address, Reset(number, force), timeout, credentials)
    ended = status.jobs[-1]
    return f"{ended.job} was {ended.state} at step {ended.global_step:,}; the servers are empty"


def _reset_shard(address: str, message: Reset, timeout: float, credentials: Credentials) -> None:
    with open_channel(address, credentials) as channel:
        stub = ParameterServerStub(channel)  # type: ignore[no-untyped-call]
        answer = call(address, stub.Reset, message, timeout, credentials)
    assert isinstance(answer, Emptied)


def _ask(addresses: Sequence[str], timeout: float, credentials: Credentials) -> JobStatus:
    """The status, from all shards. Raises `Unavailable`."""
    with StatusClient(addresses, credentials) as client:
        status = client.ask(timeout)
    if silent := [answer.problem for answer in status.answers if answer.report is None]:
        raise Unavailable("\n".join(silent))
    return status
