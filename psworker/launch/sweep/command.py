"""The command `psworker sweep`. Must not import numpy, rich or grpc before it has begun (`psworker.launch.cli`)."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from psjob.terminal.commands import Command
from psjob.terminal.log_options import LogOptions
from psjob.terminal.options import Parsed, option, section
from pswire.addresses import shard_addresses
from pswire.errors import ConfigurationError, ParamServerError
from psworker.launch.cluster_commands import cluster_job
from psworker.launch.options import COMMAND, POSITIVE, THREADS, cluster_options, refuse_on_windows
from psworker.launch.sweep.grid import Setting, combinations, parse_setting

#: Options of `psworker local` that a sweep decides for each run, or does not have.
_OWN = ("run_dir", "resume", "http", "progress", "quiet", "direct_port")


@click.command(
    "sweep",
    short_help="Run a program for each combination of values of its options.",
    cls=Command,
    context_settings=COMMAND | {"allow_interspersed_args": True, "ignore_unknown_options": True},
)
@section(
    "Sweep",
    option(
        "--set",
        "settings",
        type=Parsed("NAME=VALUE,...", parse_setting),
        multiple=True,
        required=True,
        allow_from_autoenv=False,
        show_envvar=False,
        help="An option of the program and its values, as for rate=0.1,0.01 the program gets --rate=0.1 and then "
        "--rate=0.01. Several: each combination is run.",
    ),
    option("--jobs", type=POSITIVE, metavar="N", default=1, help="Runs at once, each with its workers and shards."),
)
@cluster_options
@section("Cluster", THREADS)
@click.pass_context
def sweep_command(
    context: click.Context,
    debug: bool,
    /,
    settings: tuple[Setting, ...],
    jobs: int,
    quiet: bool,
    logs: LogOptions,
    script: str,
    arguments: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - of all types
) -> None:
    """Run SCRIPT once for each combination of the values of --set, each as a job of its own by psworker local.

    Options that are not of this command, and what follows --, are passed to the program. Each run has a folder in
    --run-dir, by default runs/SCRIPT without its ending, with its checkpoints, logs and results. A run that fails does
    not end the others; the exit code is 1 then. Ctrl-C stops all of them. With --resume a sweep continues with the runs
    that are not complete, also after values were added.

    At the end there is a table of all runs, with the last value of each scalar of the program; later, psworker runs
    shows them.

    \b
      psworker sweep train.py --set rate=0.1,0.01 --set layers=2,3,4 --jobs 2
      psworker sweep train.py --set rate=0.1,0.01 --workers 1 --shards 2 --epochs 3
      psworker sweep train.py --set seed=1,2,3 --run-dir runs/seeds --resume -- --workers 3
    """  # noqa: D301
    refuse_on_windows("psworker sweep")
    from psworker.launch.sweep.sweep import Sweep

    folder, resume = Path(options["run_dir"] or Path("runs", Path(script).stem)), options["resume"]
    given = _given(context)
    options |= {"run_dir": str(folder), "resume": False, "http": None}
    options["bind"] = shard_addresses("127.0.0.1", options["shards"])
    job = cluster_job(debug, logs, quiet, script, arguments, options)  # checks the options of all runs
    try:
        grid = combinations(settings)
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--set") from None
    say: Callable[[str], None] = (lambda _: None) if quiet else lambda line: click.echo(line, err=True)
    given += ["--bind", "127.0.0.1", "--direct-port", "off" if job.direct_port is None else "0"]  # runs have free ports
    sweep = Sweep(job, grid, folder, given, jobs=jobs, resume=resume, say=say)
    try:
        code = sweep.run()
    except ParamServerError as error:
        if debug:
            raise
        raise click.ClickException(str(error)) from None
    sys.exit(code)


#: Those of the live page, of which there would be several, and of the display of one job.
sweep_command.params = [one for one in sweep_command.params if one.name not in ("http", "progress")]


def _given(context: click.Context) -> list[str]:
    """The options of `psworker local` as they were typed; those of the environment each run reads itself."""
    words = ["--progress", "off"]
    for one in context.command.params:
        name = one.name or ""
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not isinstance(one, click.Option) or not typed or name in (*_OWN, "settings", "jobs"):
            continue
        value = context.params[name]
        if one.is_flag:
            words.append((one.opts if value else one.secondary_opts)[0])
        else:
            words += [one.opts[0], str(value)]
    return words
