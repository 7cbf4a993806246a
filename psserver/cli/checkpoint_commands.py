"""The commands for checkpoints in files: `psserver checkpoint ...` and `psserver export`.

Imports neither numpy nor rich (`psserver.cli.main`); `psserver.cli.checkpoint` does the work.
"""

from pathlib import Path

import click

from psjob.terminal.commands import Command, CommandGroup
from psjob.terminal.options import option
from psserver.cli.options import SECONDS, addresses_argument, credentials_options, json_option, optimizers_option
from pswire.security.credentials import Credentials
from pswire.system.host import refuse_windows

_directory = click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
_number = click.argument("number", required=False, type=click.IntRange(0))


@click.group("checkpoint", short_help="List, show, verify and remove checkpoints.", cls=CommandGroup)
def checkpoint_group() -> None:
    """List, show, verify and remove the checkpoints in a folder; or have a running job write one.

    DIR is the folder that servers got as --checkpoint-dir. Servers may be running.

    \b
    psserver checkpoint save host1:7070,host2:7070
    psserver checkpoint list runs/a/checkpoints
    psserver checkpoint show runs/a/checkpoints 12345
    psserver checkpoint verify runs/a/checkpoints && echo intact
    psserver checkpoint prune runs/a/checkpoints --keep 2
    """  # noqa: D301
    refuse_windows("psserver checkpoint")


@checkpoint_group.command("save", short_help="Write a checkpoint of a running job.")
@addresses_argument
@option("--timeout", type=SECONDS, default=60.0, help="Time to wait for it.")
@credentials_options
def save_command(addresses: tuple[str, ...], timeout: float, credentials: Credentials) -> None:
    """Write a checkpoint of the running job whose servers are at ADDRESSES, in the order of their shards.

    By default it is one at 127.0.0.1:7070.

    Training continues meanwhile. Prints the checkpoint's number when all servers have written it.
    """
    from psserver.cli.checkpoint_save import save

    click.echo(save(addresses, timeout, credentials))


@checkpoint_group.command("list", short_help="List the checkpoints in a folder.")
@_directory
@json_option
def list_command(directory: Path, as_json: bool) -> None:
    """List the checkpoints in DIR, oldest first.

    A job can go back to a "cut": a moment that all its shards have. A "final" checkpoint is what a server has written
    when it stopped. A "provisional" one is of servers of another number that were started and have accepted no change
    yet: the job is still as it was before. With servers on several hosts, each has only its own shard in its folder.
    """
    from psserver.cli.checkpoint import show_list

    show_list(directory, as_json=as_json)


@checkpoint_group.command("show", short_help="Show the job in a checkpoint.")
@_directory
@_number
@json_option
@optimizers_option
def show_command(directory: Path, number: int | None, as_json: bool, optimizers: str) -> None:
    """Show the job in checkpoint NUMBER of DIR, or in its newest: workers, variables, optimizers, data queues.

    --json prints what `psserver status --json` does, with the data queues and the checkpoint itself. Changes that came
    late, which are made when a job goes back to this checkpoint, are counted but not made.
    """
    from psserver.cli.checkpoint import show
    from psserver.custom_optimizers import load_optimizers

    load_optimizers(optimizers)
    show(directory, number, as_json=as_json)


@checkpoint_group.command("verify", short_help="Compare files with their checksums.")
@_directory
@_number
def verify_command(directory: Path, number: int | None) -> None:
    """Read checkpoint NUMBER of DIR, or all, and compare every file with its checksum.

    Damaged files are named, with the reason; the exit code is then 1.
    """
    from psserver.cli.checkpoint import verify

    if not verify(directory, number):
        raise SystemExit(1)


@checkpoint_group.command("prune", short_help="Remove old checkpoints.")
@_directory
@option("--keep", type=click.IntRange(1), metavar="N", required=True, help="Cuts that stay.")
def prune_command(directory: Path, keep: int) -> None:
    """Remove the old checkpoints in DIR.

    What stays: the newest --keep cuts and all that are newer, and in any case the newest checkpoint that is intact; for
    that, checkpoints are read. If the folder has several shards of a job, cuts count that all of them have.
    """
    from psserver.cli.checkpoint import remove_old

    remove_old(directory, keep)


@click.command("export", short_help="Write the variables of a job to one file.", cls=Command)
@click.argument("source", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
@option(
    "--format", "form", type=click.Choice(["safetensors", "npz"]), default="safetensors", help="Of the file OUTPUT."
)
@option("--slots", is_flag=True, help="Also write the slots of optimizers, as VARIABLE/SLOT.")
@optimizers_option
def export_command(source: Path, output: Path, form: str, slots: bool, optimizers: str) -> None:
    """Write the variables in DIR to one file, whole and with the names that they have in the program.

    DIR is a folder of checkpoints of all shards of a job, whose latest possible state is exported; or one of the
    checkpoints in it.

    \b
    psserver export runs/a/checkpoints model.safetensors
    psserver export runs/a/checkpoints/step-000012345 model.npz --format npz
    """  # noqa: D301
    refuse_windows("psserver export")
    from psserver.cli.export import export
    from psserver.custom_optimizers import load_optimizers

    load_optimizers(optimizers)
    export(source, output, form, slots=slots)
