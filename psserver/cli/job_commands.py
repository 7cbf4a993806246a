"""The commands for the jobs of standing servers: `psserver jobs` and `psserver reset`.

Imports neither numpy nor rich (`psserver.cli.main`); `psserver.cli.jobs` does the work.
"""

from functools import partial

import click

from pswire.addresses import DEFAULT_ADDRESS, parse_addresses
from pswire.parsed_option import Parsed

_option = partial(click.option, show_default=True, show_envvar=True)
_addresses = click.argument(
    "addresses", metavar="[ADDRESSES]", type=Parsed("HOST:PORT,...", parse_addresses), default=DEFAULT_ADDRESS
)
_timeout = _option("--timeout", type=click.FloatRange(0, 86_400, min_open=True), default=5.0, help="Seconds to wait.")


@click.command("jobs")
@_addresses
@_option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@_timeout
def jobs_command(addresses: tuple[str, ...], as_json: bool, timeout: float) -> None:
    """List the jobs of the servers at ADDRESSES, the present one last; by default at 127.0.0.1:7070.

    A job is the training from its first worker to its last: `running`; `done`, if a worker has finished it; `ended`, if
    none has; or `interrupted`, if its workers were lost: the next worker goes on with it.

    \b
    psserver jobs
    psserver jobs host1:7070,host2:7070 --json
    """  # noqa: D301
    from psserver.cli.jobs import show_jobs

    show_jobs(addresses, timeout, as_json=as_json)


@click.command("reset")
@_addresses
@_option("--force", is_flag=True, help="Also while workers take part in the job; they end with an error.")
@_timeout
def reset_command(addresses: tuple[str, ...], force: bool, timeout: float) -> None:
    """End the job of the servers at ADDRESSES and discard its variables; the next worker begins a new one.

    All shards of the job have to be named, and to answer. Checkpoints stay; with --checkpoint-dir the servers write one
    of the last state before.

    \b
    psserver reset
    psserver reset host1:7070,host2:7070 --force
    """  # noqa: D301
    from psserver.cli.jobs import reset

    click.echo(reset(addresses, timeout, force=force))
