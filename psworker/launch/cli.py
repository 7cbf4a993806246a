"""The command `psworker`: one worker of a cluster (`run`), or a whole cluster on this machine (`local`).

Errors are one line on stderr; `--debug` shows their traceback. Must not import numpy: until `run` begins a worker
cannot handle SIGTERM, and `--threads` must be known before numpy is loaded.
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pswire.addresses import DEFAULT_ADDRESS, shard_addresses
from pswire.command_group import InterruptibleGroup
from pswire.discovery import parse_servers
from pswire.errors import ConfigurationError, ParamServerError
from pswire.guard_option import guard_option
from pswire.log_options import LogOptions, log_options
from pswire.logs import identify
from pswire.parsed_option import Parsed
from pswire.security.credentials import Credentials
from pswire.specs.checkpoints import parse_checkpoint_every
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.encodings import ENCODINGS, parse_compression
from pswire.system.host import process_name, refuse_windows
from pswire.system.signals import end_at_once
from psworker import config
from psworker.launch.http_option import HTTP_ADDRESS, LocalCommand
from psworker.launch.processes import blas_threads
from psworker.launch.run_commands import plot_command, runs_command
from psworker.launch.run_folder import RunFolder
from psworker.launch.script import SIGTERM_CODE, run_script

_POSITIVE, _SECONDS = click.IntRange(min=1), click.FloatRange(min=0, min_open=True)
_ENCODING = click.Choice(["float32", *ENCODINGS])
#: Arguments after the script are the script's; the environment variable of an option is `PSWORKER_` and its name.
_COMMAND = {"allow_interspersed_args": False, "auto_envvar_prefix": "PSWORKER"}
_option = partial(click.option, show_default=True, show_envvar=True)


def _field(name: str, text: str, **settings: Any) -> Callable[..., Any]:  # noqa: ANN401 - as `click.option` has them
    """The option of a field of `StrategyConfig` or `WorkerConfig`, with its default."""
    default = getattr(config.StrategyConfig if hasattr(config.StrategyConfig, name) else config.WorkerConfig, name)
    option = f"--{name.replace('_', '-')}"
    flags = f"{option}/--no-{option[2:]}" if isinstance(default, bool) else option
    return _option(flags, default=default, help=text, **settings)


_FILE = click.Path(dir_okay=False)


def _credential(name: str, text: str, default: str) -> Callable[..., Any]:
    """The option of a file of `Credentials`."""
    return _option(f"--{name.replace('_', '-')}", type=_FILE, show_default=default, help=text)


_WORKER_OPTIONS = (
    _field("push_every", "Steps whose gradients are summed and pushed together.", type=_POSITIVE, metavar="N"),
    _field("pull_every", "Steps after which fresh weights are pulled.", type=_POSITIVE, metavar="M"),
    _field("overlap", "Continue computing with the previous weights while a push or pull is in progress."),
    _field(
        "local_steps",
        "Steps of the program's optimizer in the worker, whose sum is pushed as one gradient; 0: none.",
        type=click.IntRange(min=0),
        metavar="H",
    ),
    _field("encoding", "The encoding of gradients and weights for transfer; servers keep float32.", type=_ENCODING),
    _option(
        "--compress",
        default="none",
        type=Parsed("COMPRESSION", parse_compression),
        help="The compression of gradients: none, int8 or topk:FRACTION. The residual is added to the next gradient.",
    ),
    _field("shared_memory", "Share memory with servers on this host, so that tensors are not sent over the network."),
)


def _server_option(name: str, text: str, **settings: Any) -> Callable[..., Any]:  # noqa: ANN401
    """An option of `psserver serve`, with its environment variable."""
    return _option(f"--{name}", envvar=f"PSSERVER_{name.replace('-', '_').upper()}", help=text, **settings)


def _script_command(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of strategy and transfer, a script and its arguments; the value of --debug comes first."""
    function = click.pass_obj(function)
    arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
    script = click.argument("script", type=click.Path(exists=True, dir_okay=False))
    for add in (arguments, script, *reversed(_WORKER_OPTIONS)):
        function = add(function)
    return function


def _worker_options(options: dict[str, Any]) -> dict[str, Any]:
    """Removes and returns the options of strategy and transfer; refuses strategies that cannot be combined."""
    strategy = {field.name: options.pop(field.name) for field in fields(config.StrategyConfig)}
    try:
        config.StrategyConfig(**strategy)
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--local-steps") from None
    return strategy | {name: options.pop(name) for name in ("encoding", "compress", "shared_memory")}


def _refuse_windows(what: str) -> None:
    try:
        refuse_windows(what)
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from None


def _run_folder(options: dict[str, Any]) -> RunFolder | None:
    """Removes the options of the folder of a run, and returns it; refuses them without --run-dir.

    Not those from the environment: servers read the same variables, and check them.
    """
    path = options.pop("run_dir")
    values = {name: options.pop(name) for name in ("checkpoint_every", "keep", "journal", "resume")}
    given = {name: value for name, value in values.items() if value}
    if path is None:
        source = click.get_current_context().get_parameter_source
        for name in given:
            if source(name) is not ParameterSource.ENVIRONMENT:
                raise click.UsageError(f"--{name.replace('_', '-')} needs --run-dir, the folder of the run.")
        return None
    folder = RunFolder(Path(path), **given)
    if folder.resume and not folder.has_checkpoints():
        click.echo(f"psworker: nothing to resume in {folder.path}: the run starts anew", err=True)
    return folder


@click.group(cls=InterruptibleGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@_option("--debug", is_flag=True, envvar="PSWORKER_DEBUG", help="Show tracebacks of errors.")
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


@main.command(context_settings=_COMMAND)
@_option(
    "--servers",
    default=DEFAULT_ADDRESS,
    metavar="HOST:PORT,...",
    help="Addresses of all shards, in the order of the shards; unix:/path for a server on this machine; or file:/path, "
    "a file with an address per line.",
)
@_option(
    "--name",
    metavar="NAME",
    show_default="host name and process id",
    help="This worker's name, unique in the job; a restarted worker with the same name replaces the old one.",
)
@_option(
    "--job",
    default="",
    metavar="NAME",
    show_default="the one that is running or was interrupted, or else a new one",
    help="The job to take part in: the one that the servers have if that is its name, or else a new one.",
)
@_field("resume", "Go on with the job that the servers have, also if it is over.")
@_field("timeout", "How long to keep trying to reach a server before giving up.", type=_SECONDS, metavar="SECONDS")
@_option(
    "--threads",
    type=_POSITIVE,
    metavar="N",
    show_default="the number of cores",
    help="Threads of numpy's BLAS; workers on one machine should share its cores.",
)
@_field("keep_memory", "Keep the memory of freed arrays for reuse: faster, but the process never shrinks.")
@_option(
    "--sigterm-code",
    type=click.IntRange(0, 255),
    default=SIGTERM_CODE,
    metavar="CODE",
    help="The exit code after SIGTERM: 0 where a stop is no failure, as with docker compose down. Before a worker has "
    "read this option it ends as any process does.",
)
@_field(
    "progress",
    "How to show progress on stderr: a line on a terminal (auto), plain lines or off.",
    type=click.Choice(config.PROGRESS),
)
@_option(
    "--summary-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder for scalars of this worker, and event files of TensorBoard.",
)
@_credential("tls_ca", "A file with the CA to check servers by; with it connections use TLS.", "no TLS")
@_credential("tls_cert", "A file with this worker's certificate, for servers that ask for one.", "none")
@_credential("tls_key", "A file with its private key.", "none")
@_option(
    "--tls-name",
    metavar="HOST",
    show_default="that in the address",
    help="The host name that the certificates of all servers must have.",
)
@_credential("token_file", "A file with a token for the servers.", "that of a psworker local of this user")
@log_options("warning")
@click.option("--launched", is_flag=True, hidden=True, help="Write reports for `psworker local` to stderr.")
@_script_command
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

    Arguments after SCRIPT are passed to it. The exit code is the script's; 1 after an error, 130 after Ctrl-C and
    --sigterm-code after SIGTERM; the script leaves its session in both cases.

    \b
      psserver serve &
      psworker run --threads 1 train.py --epochs 3
      psworker run --servers ps-0:7070,ps-1:7070 --name worker-7 train.py
    """  # noqa: D301
    _refuse_windows("psworker run")
    end_at_once(signal.SIGTERM, sigterm_code)  # until the script begins
    options |= _worker_options(options)
    if threads is not None:
        os.environ.update(blas_threads(threads))  # read when the script loads numpy
    try:
        servers = parse_servers(options["servers"])
    except ParamServerError as error:
        raise click.BadParameter(str(error), param_hint="--servers") from None
    try:
        Credentials(**{field.name: options[field.name] or "" for field in fields(Credentials)})
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    os.environ |= config.environment(options | {"servers": ",".join(servers)})
    logs.set_up(program=True)
    identify("worker", options["name"] or process_name(), lambda: None)
    sys.exit(run_script(script, arguments, debug=debug, sigterm_code=sigterm_code, launched=launched))


@main.command(cls=LocalCommand, context_settings=_COMMAND)
@_option("--workers", type=_POSITIVE, metavar="N", default=2, help="Number of workers.")
@_option(
    "--shards", type=_POSITIVE, metavar="N", default=1, help="Server processes, among which the variables are divided."
)
@_option(
    "--threads",
    type=_POSITIVE,
    metavar="N",
    show_default="OMP_NUM_THREADS or similar if set, otherwise cores / workers",
    help="BLAS threads of each worker.",
)
@_option(
    "--progress",
    type=click.Choice(config.PROGRESS),
    default="auto",
    help="How to show progress on stderr: live tables, plain lines or off; auto: live on a terminal, otherwise plain.",
)
@_option("-q", "--quiet", is_flag=True, help="Show only the output of the program, and errors.")
@log_options(None, "warning; with --quiet: error")
@_option(
    "--bind",
    metavar="HOST[:PORT]",
    default="127.0.0.1",
    envvar="PSSERVER_BIND",
    help="Address of the first server; each further one has the next port. Without a port, free ones are used. "
    "0.0.0.0:7070 is for workers on other machines, and needs TLS (or --insecure).",
)
@_server_option("tls-cert", "The certificate of the servers and its chain, in PEM.", type=_FILE, show_default="no TLS")
@_server_option("tls-key", "Its private key.", type=_FILE, show_default="no TLS")
@_server_option(
    "tls-ca",
    "The CA by which workers of this machine check the servers, and these the certificates of clients.",
    type=_FILE,
    show_default="no TLS",
)
@_server_option(
    "client-certificates",
    "Whether clients need a certificate; workers of this machine show that of the servers.",
    type=click.Choice(["off", "required"]),
    default="off",
)
@_server_option(
    "token-file",
    "Tokens for workers of other machines and other users, as `psserver token` writes them; read at the start.",
    type=_FILE,
    show_default="tokens of this user alone",
)
@_server_option("insecure", "Servers without tokens; with --bind, also without TLS for other machines.", is_flag=True)
@_option(
    "--consistency",
    default="async",
    type=Parsed("POLICY", parse_consistency),
    envvar="PSSERVER_CONSISTENCY",
    help="The consistency policy: async, bounded:S, or sync:N[,backup=B][,aggregate=A].",
)
@_option(
    "--staleness",
    default="none",
    type=Parsed("HANDLING", parse_staleness),
    envvar="PSSERVER_STALENESS",
    help="The handling of stale pushes: none, scale, delay-compensated[:L] or drop:T.",
)
@_option(
    "--restarts",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="How often a process that fails or is killed is started again; a server only with --run-dir.",
)
@_option(
    "--run-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder for the checkpoints of the servers, the logs of all processes, and what `psworker runs` and `psworker "
    "plot` show; new or empty, unless --resume.",
)
@_option(
    "--checkpoint-every",
    type=Parsed("INTERVAL", parse_checkpoint_every),
    show_default="60s",
    envvar="PSSERVER_CHECKPOINT_EVERY",
    help="The interval between two checkpoints: 60s, 5m, 1h or 1000steps.",
)
@_option(
    "--keep",
    type=_POSITIVE,
    metavar="N",
    show_default="5",
    envvar="PSSERVER_KEEP",
    help="Number of checkpoints that are kept.",
)
@_option(
    "--journal",
    is_flag=True,
    envvar="PSSERVER_JOURNAL",
    help="Write each push to disk before it is answered, so that none is ever lost.",
)
@_option("--resume", is_flag=True, help="Continue the run in --run-dir where it stopped.")
@guard_option()
@_option(
    "--http",
    type=HTTP_ADDRESS,
    show_default="no page; a free port without a value",
    help="Show the job on a live page at this address (psserver monitor), whose URL is printed.",
)
@_script_command
def local(
    debug: bool,
    /,
    progress: str,
    quiet: bool,
    logs: LogOptions,
    script: str,
    arguments: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - of all types
) -> None:
    """Run SCRIPT on a cluster of processes on this machine, and stop all of them at the end.

    Lines that the workers print are shown after the worker's name. A worker that fails is started again up to
    --restarts times; then the others are stopped, and its exit code is this command's. Ctrl-C stops all of them; a
    second Ctrl-C kills them.

    On a terminal tables of the workers and shards are shown below these lines (--progress). With --log-format json
    each line of stderr is a JSON object. --log-level is that of servers and workers.

    The first line has the servers' addresses: for `psserver status`, and for further workers (`psworker run`). Other
    options of servers are set by their environment variables (`psserver serve --help`).

    With --run-dir the servers write checkpoints, --restarts restarts them too, and --resume continues a run that was
    stopped, also on another number of shards or with another number of workers.

    \b
      psworker local train.py
      psworker local --workers 4 --shards 2 train.py --epochs 3
      psworker local --workers 4 --http train.py
      psworker local --workers 3 --consistency bounded:2 train.py
      psworker local --workers 3 --restarts 5 train.py
      psworker local --bind 0.0.0.0:7070 --tls-cert server.crt --tls-key server.key --tls-ca ca.crt train.py
      psworker local --run-dir runs/a --checkpoint-every 5m --restarts 5 train.py
      psworker local --run-dir runs/a --resume train.py
      psworker local --workers 4 --push-every 4 --pull-every 4 --overlap train.py
      psworker local --workers 4 --consistency sync:4 --local-steps 50 train.py
      psworker local --workers 4 --encoding bfloat16 --compress topk:0.01 train.py
      psworker local --progress off --workers 8 --threads 1 train.py > log.txt
    """  # noqa: D301
    _refuse_windows("psworker local")
    # imported here, since `run` needs neither rich nor grpc
    from psworker.launch.cluster import Cluster
    from psworker.launch.cluster_security import ClusterSecurity
    from psworker.launch.display.choice import make_display
    from psworker.launch.job import Job

    worker_options, run_folder = _worker_options(options), _run_folder(options)
    if options["guard"] == "rollback" and run_folder is None:
        raise click.UsageError("--guard rollback goes back to a checkpoint: it needs --run-dir, the folder of the run.")
    try:
        options["bind"] = shard_addresses(options["bind"], options["shards"])
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--bind") from None
    security = {field.name: options.pop(field.name) for field in fields(ClusterSecurity)}
    try:
        options["security"] = ClusterSecurity(**{name: value for name, value in security.items() if value is not None})
        options["security"].check([*options["bind"], *filter(None, [options["http"]])])
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    try:
        options |= {"log_level": logs.level or "error" * quiet, "log_format": logs.form}
        job = Job(script, arguments, debug=debug, worker_options=worker_options, run_folder=run_folder, **options)
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--workers") from None
    names = job.worker_names + job.server_names
    display = make_display(progress, names, title=Path(script).name, log_format=logs.form, quiet=quiet)
    cluster = Cluster(job, display)
    try:
        outcome = cluster.run()
    except ParamServerError as error:
        if debug:
            raise
        raise click.ClickException(str(error)) from None
    if outcome.warning:
        display.problem("warning", f"psworker: {outcome.warning}")
    if outcome.error:
        display.problem("error", f"Error: {outcome.error}")
    if outcome.last_lines:
        display.problem("error", "Its last lines:\n" + "\n".join(f"  {line}" for line in outcome.last_lines))
    sys.exit(outcome.code)


main.add_command(plot_command)
main.add_command(runs_command)
