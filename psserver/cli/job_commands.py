"""The commands for jobs: `psserver jobs` and `psserver reset` of standing servers, and `psserver quarantine`.

Imports neither numpy nor rich (`psserver.cli.main`); `psserver.cli.jobs` does the work.
"""

import click

from psjob.terminal.commands import Command
from psjob.terminal.options import option
from psserver.cli.options import addresses_argument, credentials_options, json_option, timeout_option
from pswire.security.credentials import Credentials


@click.command("jobs", short_help="List the jobs of running servers.", cls=Command)
@addresses_argument
@json_option
@timeout_option
@credentials_options
def jobs_command(addresses: tuple[str, ...], as_json: bool, timeout: float, credentials: Credentials) -> None:
    """List the jobs of the servers at ADDRESSES, the present one last; by default at 127.0.0.1:7070.

    A job is the training from its first worker to its last: `running`; `done`, if a worker has finished it; `ended`, if
    none has; or `interrupted`, if its workers were lost: the next worker continues it.

    \b
    psserver jobs
    psserver jobs host1:7070,host2:7070 --json
    """  # noqa: D301
    from psserver.cli.jobs import show_jobs

    show_jobs(addresses, timeout, credentials, as_json=as_json)


@click.command("reset", short_help="End the job and discard its variables.", cls=Command)
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


@click.command("quarantine", short_help="Drop the pushes of a worker, or apply them.", cls=Command)
@addresses_argument
@option("--worker", required=True, metavar="NAME", help="The worker whose pushes are dropped.")
@option("--reason", default="by hand", help="Why, for its log and the servers'.")
@option("--release", is_flag=True, help="Apply its pushes again.")
@credentials_options
def quarantine_command(
    addresses: tuple[str, ...], worker: str, reason: str, release: bool, credentials: Credentials
) -> None:
    """Have the servers at ADDRESSES drop all pushes of a worker, such as one that sends gradients far too large.

    The worker continues, with the values of the others, and its next process stays in quarantine, until --release. All
    shards of the job have to be named, in their order. With tokens it needs one of an admin.

    \b
    psserver quarantine --worker worker-1
    psserver quarantine host1:7070,host2:7070 --worker worker-1 --reason "its disk is broken"
    psserver quarantine --worker worker-1 --release
    """  # noqa: D301
    from psjob.status.interventions import InterventionCalls

    with InterventionCalls(addresses, "operator", credentials) as interventions:
        change = interventions.release if release else interventions.quarantine
        remaining = change(worker, reason)
    click.echo(f"in quarantine: {', '.join(remaining) or 'no worker'}")
