"""The command `psworker profile`. Must not import numpy before `--threads` has been read (`psworker.launch.cli`)."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from psjob.terminal.commands import Command
from psjob.terminal.options import option, section
from pswire.errors import ParamServerError
from pswire.network.discovery import parse_servers
from psworker import environment
from psworker.launch.options import COMMAND, POSITIVE, script_command, worker_options
from psworker.launch.script import run_script


@click.command(
    "profile", short_help="Show where the time of a training step goes.", cls=Command, context_settings=COMMAND
)
@section(
    "Profile",
    option(
        "--steps",
        type=POSITIVE,
        metavar="N",
        default=100,
        allow_from_autoenv=False,
        show_envvar=False,
        help="Steps that are measured; then the program ends.",
    ),
    option(
        "--warmup",
        type=click.IntRange(min=0),
        metavar="N",
        default=20,
        allow_from_autoenv=False,
        show_envvar=False,
        help="Steps before them, which are not.",
    ),
    option(
        "--trace",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        show_default="none",
        allow_from_autoenv=False,
        show_envvar=False,
        help="Write a trace of the steps to this file, for chrome://tracing and Perfetto.",
    ),
)
@section(
    "Worker",
    option(
        "--servers",
        metavar="HOST:PORT,...",
        default="",
        show_default="a shard in this process",
        help="Join the servers at these addresses, as psworker run does, whose other options are read from their "
        "environment variables.",
    ),
    option(
        "--threads", type=POSITIVE, metavar="N", show_default="the number of cores", help="Threads of numpy's BLAS."
    ),
)
@script_command
def profile_command(
    debug: bool,
    /,
    steps: int,
    warmup: int,
    trace: Path | None,
    servers: str,
    threads: int | None,
    script: str,
    arguments: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - of all types
) -> None:
    """Run SCRIPT until some training steps are measured, and show a table of where their time went.

    A line for each phase: take data, forward and backward by op, encode and push, the update by the shard in this
    process or the wait for servers, apply weights; the rest is the program's own. A step ends with the return of
    minimize or apply_gradients, so that what is between two steps, such as an evaluation, belongs to the second one.

    \b
      psworker profile train.py
      psworker profile --steps 50 --trace trace.json --threads 1 train.py --epochs 3
      psworker profile --servers 127.0.0.1:7070 train.py
    """  # noqa: D301
    options = worker_options(options) | {"servers": servers or None, "progress": "off"}
    try:
        if servers:
            parse_servers(servers)
    except ParamServerError as error:
        raise click.BadParameter(str(error), param_hint="--servers") from None
    if threads is not None:
        os.environ.update(environment.blas_threads(threads))  # read when numpy is loaded
    os.environ |= environment.of_worker(options)
    # by name: the modules that start processes import nothing that trains (`pyproject.toml`)
    profile = import_module("psworker.profiling.profile").Profile(steps, warmup)
    with profile.measuring():
        outcome = run_script(script, arguments, debug=debug)
    if not profile.measured:
        if not outcome:
            click.echo(
                f"Error: no step was measured, since the program made no more than --warmup {warmup} calls of minimize "
                "or apply_gradients: let it train longer, or use a smaller --warmup",
                err=True,
            )
        sys.exit(outcome or 1)
    import_module("psworker.profiling.report").show_profile(profile)
    try:
        if trace is not None:
            profile.write_trace(trace)
    except ParamServerError as error:
        raise click.ClickException(str(error)) from None
    sys.exit(outcome)
