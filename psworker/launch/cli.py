"""The command `psworker`: one worker of a cluster (`run`), or a whole cluster on this machine (`local`).

Flags and exit codes only: `psworker.launch.run_script` runs a program, `psworker.launch.local_cluster` a job. Errors
are one line on stderr;
`--debug` shows their traceback. Nothing here may bring numpy: until `run` begins, a worker is deaf to SIGTERM, and what
`--threads` says must be known before.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable

import click

from pswire.errors import ConfigurationError, ParamServerError
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.encodings import ENCODINGS, parse_compression
from pswire.system.exit_signals import end_at_once
from psworker import config
from psworker.launch.processes import blas_threads
from psworker.launch.run_script import SIGTERM_CODE, run_script

_SCRIPT = click.Path(exists=True, dir_okay=False)
_PASS_ON = {"allow_interspersed_args": False}  # what stands behind the script is the script's

_EXCHANGE_OPTIONS = (
    click.option(
        "--push-every",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        envvar=config.PUSH_EVERY,
        show_default=True,
        show_envvar=True,
        help="Steps whose gradients are added up and pushed together.",
    ),
    click.option(
        "--pull-every",
        type=click.IntRange(min=1),
        default=1,
        metavar="M",
        envvar=config.PULL_EVERY,
        show_default=True,
        show_envvar=True,
        help="Steps after which fresh weights are taken.",
    ),
    click.option(
        "--overlap/--no-overlap",
        default=False,
        envvar=config.OVERLAP,
        show_default=True,
        show_envvar=True,
        help="Go on computing while a push or pull is under way, with the weights before it.",
    ),
    click.option(
        "--local-steps",
        type=click.IntRange(min=0),
        default=0,
        metavar="H",
        envvar=config.LOCAL_STEPS,
        show_default=True,
        show_envvar=True,
        help="Steps of the program's optimizer in the worker, whose sum is pushed as one gradient; 0: none.",
    ),
)


def _checked_by(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str], str]:
    """An option's callback that refuses what `parse` does, and gives what it wrote down."""

    def check(context: click.Context, option: click.Parameter, text: str) -> str:
        try:
            return str(parse(text))
        except ConfigurationError as error:
            raise click.BadParameter(str(error)) from None

    return check


_TRAVEL_OPTIONS = (
    click.option(
        "--encoding",
        type=click.Choice(["float32", *ENCODINGS]),
        default="float32",
        envvar=config.ENCODING,
        show_default=True,
        show_envvar=True,
        help="The form of gradients and weights on their way; servers keep float32.",
    ),
    click.option(
        "--compress",
        default="none",
        metavar="COMPRESSION",
        envvar=config.COMPRESS,
        show_default=True,
        show_envvar=True,
        callback=_checked_by(parse_compression),
        help="What of a gradient is pushed: none, for all; int8; or topk:FRACTION. The rest goes into the next one.",
    ),
    click.option(
        "--shared-memory/--no-shared-memory",
        default=True,
        envvar=config.SHARED_MEMORY,
        show_default=True,
        show_envvar=True,
        help="Share memory with servers on this host, so that tensors need not be sent.",
    ),
)


def _exchange_and_travel(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of these two configurations, which `command` is given."""

    @functools.wraps(command)
    def with_configs(
        *arguments: object,
        push_every: int,
        pull_every: int,
        overlap: bool,
        local_steps: int,
        encoding: str,
        compress: str,
        shared_memory: bool,
        **others: object,
    ) -> None:
        try:
            strategy = config.StrategyConfig(push_every, pull_every, overlap, local_steps)
        except ConfigurationError as error:
            raise click.BadParameter(str(error), param_hint="--local-steps") from None
        travel = config.EncodingConfig(encoding, parse_compression(compress), shared_memory)
        command(*arguments, strategy=strategy, travel=travel, **others)

    for option in reversed(_EXCHANGE_OPTIONS + _TRAVEL_OPTIONS):
        with_configs = option(with_configs)
    return with_configs


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, envvar="PSWORKER_DEBUG", show_envvar=True, help="Show tracebacks of errors.")
@click.version_option(package_name="paramserver", prog_name="psworker")
@click.pass_context
def main(context: click.Context, debug: bool) -> None:
    """Train with workers that share their variables through a parameter server.

    A training program is an ordinary Python script; `psworker.session()` in it finds out how it was started:

    \b
      python train.py                                  one process, no network
      psworker local --workers 4 train.py              a cluster on this machine
      psworker run --servers host:5000 train.py        one worker of a cluster

    The servers of a cluster are started with `psserver serve`.
    """  # noqa: D301
    context.obj = debug
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its log tells users nothing; read when grpc is loaded


@main.command(context_settings=_PASS_ON)
@click.option(
    "--servers",
    required=True,
    metavar="HOST:PORT,...",
    envvar=config.SERVERS,
    show_envvar=True,
    help="Addresses of all shards, in the order of the shards; unix:/path for a server on this machine.",
)
@click.option(
    "--name",
    metavar="NAME",
    envvar=config.NAME,
    show_default="host name and process id",
    show_envvar=True,
    help="This worker's name, unique in the job; a worker that starts again under its name takes its place.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=config.DEFAULT_TIMEOUT,
    metavar="SECONDS",
    envvar=config.TIMEOUT,
    show_default=True,
    show_envvar=True,
    help="How long to go on trying to reach a server before giving up.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    envvar="PSWORKER_THREADS",
    show_default="as many as cores",
    show_envvar=True,
    help="Threads of numpy's BLAS; workers on one machine should share its cores.",
)
@click.option(
    "--keep-memory/--no-keep-memory",
    default=True,
    envvar=config.KEEP_MEMORY,
    show_default=True,
    show_envvar=True,
    help="Keep the memory of arrays that are freed, for the next ones: faster, but the process never shrinks.",
)
@click.option(
    "--sigterm-code",
    type=click.IntRange(0, 255),
    default=SIGTERM_CODE,
    metavar="CODE",
    envvar="PSWORKER_SIGTERM_CODE",
    show_default=True,
    show_envvar=True,
    help="The exit code after SIGTERM: 0 where to be stopped is no failure, as with docker compose down. In its first "
    "moments, until it has read this, a worker ends as any process does.",
)
@_exchange_and_travel
@click.argument("script", type=_SCRIPT)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.pass_obj
def run(
    debug: bool,
    servers: str,
    name: str | None,
    timeout: float,
    threads: int | None,
    keep_memory: bool,
    sigterm_code: int,
    strategy: config.StrategyConfig,
    travel: config.EncodingConfig,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT as one worker that joins the servers.

    What stands behind SCRIPT is given to it. The exit code is the script's; 1 after an error, 130 after Ctrl-C and
    --sigterm-code after SIGTERM, which both let the script leave its session in good order.

    \b
      psserver serve --bind 127.0.0.1:5000 &
      psworker run --servers 127.0.0.1:5000 --threads 1 train.py --epochs 3
      psworker run --servers ps-0:5000,ps-1:5000 --name worker-7 train.py
    """  # noqa: D301
    end_at_once(signal.SIGTERM, sigterm_code)  # until the script begins
    if threads is not None:
        os.environ.update(blas_threads(threads))  # in time: it is read when numpy is loaded, by the script
    from pswire.channel import check_address  # it brings grpc, which `psworker --help` does without

    try:
        addresses = tuple(map(check_address, config.parse_servers(servers)))
        config.WorkerConfig(addresses)  # refuses one that is named twice
        os.environ[config.SERVERS] = ",".join(addresses)
    except ParamServerError as error:
        raise click.BadParameter(str(error), param_hint="--servers") from None
    os.environ[config.TIMEOUT] = str(timeout)
    os.environ[config.KEEP_MEMORY] = str(int(keep_memory))
    os.environ.update(strategy.environment() | travel.environment())
    if name:
        os.environ[config.NAME] = name
    sys.exit(run_script(script, arguments, debug=debug, sigterm_code=sigterm_code))


@main.command(context_settings=_PASS_ON)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    default=2,
    envvar="PSWORKER_WORKERS",
    show_default=True,
    show_envvar=True,
    help="How many workers.",
)
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    envvar="PSWORKER_SHARDS",
    show_default=True,
    show_envvar=True,
    help="How many server processes; the variables are divided among them.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    envvar="PSWORKER_THREADS",
    show_default="OMP_NUM_THREADS and its like, or else cores / workers",
    show_envvar=True,
    help="Threads of each worker's BLAS.",
)
@click.option(
    "--progress",
    type=click.Choice(["auto", "live", "plain", "off"]),
    default="auto",
    envvar="PSWORKER_PROGRESS",
    show_default=True,
    show_envvar=True,
    help="How to show progress on stderr: a live table, plain lines, nothing; auto: live on a terminal, else plain.",
)
@click.option(
    "--consistency",
    default="async",
    metavar="POLICY",
    envvar="PSSERVER_CONSISTENCY",
    show_default=True,
    show_envvar=True,
    callback=_checked_by(parse_consistency),
    help="Whose pushes make an update: async, bounded:S, sync:N or sync:N,backup=B.",
)
@click.option(
    "--staleness",
    default="none",
    metavar="HANDLING",
    envvar="PSSERVER_STALENESS",
    show_default=True,
    show_envvar=True,
    callback=_checked_by(parse_staleness),
    help="What is done about a stale push: none, scale, delay-compensated[:L] or drop:T.",
)
@_exchange_and_travel
@click.argument("script", type=_SCRIPT)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.pass_obj
def local(
    debug: bool,
    workers: int,
    shards: int,
    threads: int | None,
    progress: str,
    consistency: str,
    staleness: str,
    strategy: config.StrategyConfig,
    travel: config.EncodingConfig,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT on a cluster of processes on this machine, and stop all of them at the end.

    Lines that the workers print are passed on behind the worker's name. When a worker fails, the others are stopped
    and its exit code is this command's. Ctrl-C stops all, a second one at once.

    \b
      psworker local train.py
      psworker local --workers 4 --shards 2 train.py --epochs 3
      psworker local --workers 3 --consistency bounded:2 train.py
      psworker local --workers 4 --push-every 4 --pull-every 4 --overlap train.py
      psworker local --workers 4 --consistency sync:4 --local-steps 50 train.py
      psworker local --workers 4 --encoding bfloat16 --compress topk:0.01 train.py
      psworker local --progress off --workers 8 --threads 1 train.py > log.txt
    """  # noqa: D301
    # imported here, so that `run` needs no rich and no grpc
    from psworker.launch.display import make_display
    from psworker.launch.local_cluster import Job, LocalCluster

    try:
        job = Job(script, arguments, workers, shards, threads, debug, consistency, staleness, strategy, travel)
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--workers") from None
    cluster = LocalCluster(job, make_display(progress, job.worker_names + job.server_names))
    try:
        outcome = cluster.run()
    except ParamServerError as error:
        if debug:
            raise
        raise click.ClickException(str(error)) from None
    if outcome.error:
        click.echo(f"Error: {outcome.error}", err=True)
    if outcome.last_lines:
        click.echo("Its last lines:\n" + "\n".join(f"  {line}" for line in outcome.last_lines), err=True)
    sys.exit(outcome.code)
