"""The command `psworker`: one worker of a cluster (`run`), or a whole cluster on this machine (`local`).

Errors are one line on stderr; `--debug` shows their traceback. Must not import numpy: until `run` begins a worker
cannot handle SIGTERM, and `--threads` must be known before numpy is loaded.
"""

import os
import shlex
import signal
import sys
from dataclasses import fields
from typing import Any

import click

from psjob.terminal.commands import InterruptibleGroup
from psjob.terminal.log_options import LogOptions, log_options
from psjob.terminal.logs import identify
from psjob.terminal.options import option, section
from pswire.errors import ConfigurationError, ParamServerError
from pswire.network.discovery import parse_servers
from pswire.security.credentials import Credentials
from pswire.system.host import process_name
from pswire.system.signals import end_at_once
from psworker import environment
from psworker.launch.cluster_commands import local_command, ray_command
from psworker.launch.options import (
    COMMAND,
    POSITIVE,
    refuse_on_windows,
    script_command,
    worker_flags,
    worker_options,
)
from psworker.launch.profile_command import profile_command
from psworker.launch.run_commands import plot_command, runs_command
from psworker.launch.script import SIGTERM_CODE, run_script
from psworker.launch.sweep.command import sweep_command


class _Commands(InterruptibleGroup):
    """The commands, of which a program that is given instead of one is none."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name `psworker local` to one who gives a program."""
        if args[0].endswith(".py"):
            ctx.fail(f"{args[0]} is a program, and no command: did you mean `psworker local {shlex.join(args)}`?")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@option("--debug", is_flag=True, envvar="PSWORKER_DEBUG", help="Show tracebacks of errors.")
@click.version_option(package_name="paramserver", prog_name="psworker")
@click.pass_context
def main(context: click.Context, debug: bool) -> None:
    """Train with workers that share their variables through a parameter server.

    A training program is an ordinary Python script; `psworker.session()` in it detects how it was started:

    \b
      python train.py                                  one process, no network
      psworker local --workers 4 train.py              a cluster on this machine
      psworker run --servers host:7070 train.py        one worker of a cluster

    The servers of a cluster are started with `psserver serve`.
    """  # noqa: D301
    context.obj = debug
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its log does not help users; grpc reads it when loaded


@main.command(short_help="Run one worker of a cluster.", context_settings=COMMAND)
@worker_flags(cluster=False)
@section(
    "Worker",
    option(
        "--threads",
        type=POSITIVE,
        metavar="N",
        show_default="the number of cores",
        help="Threads of numpy's BLAS; workers on one machine should share its cores.",
    ),
)
@section("Output", log_options("warning"))
@section(
    "Advanced",
    option(
        "--sigterm-code",
        type=click.IntRange(0, 255),
        default=SIGTERM_CODE,
        metavar="CODE",
        help="Exit code after SIGTERM: 0 where a stop is no failure. While the worker starts, SIGTERM kills it.",
    ),
)
@click.option("--launched", is_flag=True, hidden=True, help="Write reports for `psworker local` to stderr.")
@script_command
def run(
    debug: bool,
    /,
    threads: int | None,
    sigterm_code: int,
    launched: bool,
    script: str,
    arguments: tuple[str, ...],
    logs: LogOptions,
    **options: Any,  # noqa: ANN401 - of all types
) -> None:
    """Run SCRIPT as one worker that joins the servers.

    Arguments after SCRIPT are passed to it. The exit code is the script's; 1 after an error, 69 if no server could be
    reached for --timeout, 130 after Ctrl-C and --sigterm-code after SIGTERM; the script leaves its session in both
    cases.

    \b
      psserver serve &
      psworker run --threads 1 train.py --epochs 3
      psworker run --servers ps-0:7070,ps-1:7070 --name worker-7 train.py
    """  # noqa: D301
    refuse_on_windows("psworker run")
    end_at_once(signal.SIGTERM, sigterm_code)  # until the script begins
    options |= worker_options(options)
    if threads is not None:
        os.environ.update(environment.blas_threads(threads))  # read when the script loads numpy
    try:
        servers = parse_servers(options["servers"])
    except ParamServerError as error:
        raise click.BadParameter(str(error), param_hint="--servers") from None
    try:
        Credentials(**{field.name: options[field.name] or "" for field in fields(Credentials)})
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    os.environ |= environment.of_worker(options | {"servers": ",".join(servers)})
    logs.set_up(program=True)
    identify("worker", options["name"] or process_name(), lambda: None)
    sys.exit(run_script(script, arguments, debug=debug, sigterm_code=sigterm_code, launched=launched))


main.add_command(local_command)
main.add_command(ray_command)
main.add_command(sweep_command)
main.add_command(profile_command)
main.add_command(plot_command)
main.add_command(runs_command)
