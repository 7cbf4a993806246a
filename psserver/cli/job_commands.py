"""The commands for the jobs of standing servers: `psserver jobs` and `psserver reset`.

Imports neither numpy nor rich (`psserver.cli.main`); `psserver.cli.jobs` does the work.
"""

import click

from psserver.cli.options import addresses_argument, credentials_options, json_option, option, timeout_option
from pswire.security.credentials import Credentials


@click.command("jobs")
@addresses_argument
@json_option
@timeout_option
@credentials_options
def jobs_command(addresses: tuple[str, ...], as_json: bool, timeout: float, credentials: Credentials) -> None:
    """List the jobs of the servers at ADDRESSES, the present one last; by default at 127.0.0.1:7070.

    A job is the training from its first worker to its last: `running`; `done`, if a worker has finished it; `ended`, if
    none has; or `interrupted`, if its workers were lost: the next worker goes on with it.

    \b
    psserver jobs
    psserver jobs host1:7070,host2:7070 --json
    """  # noqa: D301
    from psserver.cli.jobs import show_jobs

    show_jobs(addresses, timeout, credentials, as_json=as_json)


@click.command("reset")
@addresses_argument
@option("--force", is_flag=True, help="Also while workers take part in the job; they end with an error.")
@timeout_option
@credentials_options
def reset_command(addresses: tuple[str, ...], force: bool, timeout: float, credentials: Credentials) -> None:
    """End the job of the servers at ADDRESSES and discard its variables; the next worker begins a new one.

    All shards of the job have to be named, and to answer. Checkpoints stay; with --checkpoint-dir the servers write one
    of the last state before.

    \b
    psserver reset
    psserver reset host1:7070,host2:7070 --force
    """  # noqa: D301
    from psserver.cli.jobs import reset

    click.echo(reset(addresses, timeout, credentials, force=force))
