"""Options of the commands that run training programs: of one worker, and of a whole cluster. Must not import numpy."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from psjob.terminal.guard_option import guard_option
from psjob.terminal.log_options import log_options
from psjob.terminal.options import Parsed, option, section
from pswire.addresses import parse_port
from pswire.errors import ConfigurationError
from pswire.specs.checkpoints import parse_checkpoint_every
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.system.host import refuse_windows
from psworker import config
from psworker.launch.http_option import HTTP_ADDRESS
from psworker.launch.run_folder import RunFolder

POSITIVE, SECONDS = click.IntRange(min=1), click.FloatRange(min=0, min_open=True)
#: Arguments after the script are the script's; the environment variable of an option is `PSWORKER_` and its name.
COMMAND = {"allow_interspersed_args": False, "auto_envvar_prefix": "PSWORKER"}


FILE, FOLDER = click.Path(dir_okay=False), click.Path(file_okay=False)


def worker_flags(*, cluster: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds options of a worker (`psworker.config.OPTIONS`): those of a `cluster`, or the others."""
    sections: dict[str, list[Callable[..., Any]]] = {}
    for name, (kind, one) in config.OPTIONS.items():
        if one.help and one.cluster == cluster:
            sections.setdefault(one.section, []).append(_worker_option(name, kind, one))

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for title, options in reversed(sections.items()):
            command = section(title, *options)(command)
        return command

    return add


def _worker_option(name: str, kind: object, one: config.Option) -> Callable[..., Any]:
    flag, default = f"--{name.replace('_', '-')}", one.flag_default or getattr(config.WorkerConfig, name)
    settings: dict[str, Any] = {"help": one.help, "metavar": one.metavar}
    if kind is bool:
        flag = f"{flag}/--no-{flag[2:]}"
    elif kind is float:
        settings["type"] = SECONDS
    elif one.choices:
        settings["type"] = click.Choice(one.choices)
    elif one.parse is not None:
        settings["type"] = Parsed(one.metavar or "", one.parse)
    elif one.least is not None:
        settings["type"] = click.IntRange(min=one.least)
    elif one.path:
        settings["type"] = FILE if one.path == "file" else FOLDER
    if default != "":
        settings["default"] = default if isinstance(default, str | int | float) else str(default)
    if one.default:
        settings["show_default"] = one.default
    return option(flag, **settings)


def server_option(name: str, text: str, **settings: Any) -> Callable[..., Any]:  # noqa: ANN401
    """An option of `psserver serve`, with its environment variable."""
    return option(f"--{name}", envvar=f"PSSERVER_{name.replace('-', '_').upper()}", help=text, **settings)


def script_command(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of strategy and transfer, a script and its arguments; the value of --debug comes first."""
    function = click.pass_obj(function)
    arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
    script = click.argument("script", type=click.Path(exists=True, dir_okay=False))
    for add in (arguments, script, worker_flags(cluster=True)):
        function = add(function)
    return function


def note_misplaced(script: str, arguments: Sequence[str]) -> None:
    """Say which arguments of a script are options of this command, and probably not of the script.

    Its text does not have their names. They stay the script's: it may have them from a module.
    """
    context = click.get_current_context()
    own = {name for one in context.command.params if isinstance(one, click.Option) for name in one.opts}
    names = [name for word in arguments if (name := word.partition("=")[0]) in own and name.startswith("--")]
    if not names:
        return
    text = Path(script).read_text(errors="replace").replace("_", "-")
    if unknown := [name for name in names if name[2:] not in text]:
        are = "is an argument" if len(unknown) == 1 else "are arguments"
        click.echo(
            f"psworker: {' and '.join(unknown)} after {script} {are} of the script: options of {context.command_path} "
            "go before it",
            err=True,
        )


def worker_options(options: dict[str, Any]) -> dict[str, Any]:
    """Removes and returns the options of workers; refuses strategies that cannot be combined."""
    given = {name: options.pop(name) for name, (_, one) in config.OPTIONS.items() if one.cluster}
    try:
        config.WorkerConfig(**given)
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--local-steps") from None
    return given


def refuse_on_windows(what: str) -> None:
    """End the command on Windows, with an error message."""
    try:
        refuse_windows(what)
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from None


def run_folder(options: dict[str, Any]) -> RunFolder | None:
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


#: The options of a command that runs a cluster, after its own.
_CLUSTER_OPTIONS = (
    section(
        "Cluster",
        option("--workers", type=POSITIVE, metavar="N", default=2, help="Number of workers."),
        option(
            "--shards",
            type=POSITIVE,
            metavar="N",
            default=1,
            help="Server processes, among which the variables are divided.",
        ),
        option(
            "--restarts",
            type=click.IntRange(min=0),
            metavar="N",
            show_default="5 for one that is killed, 0 for one that fails",
            help="How often a process that fails or is killed is started again; a server only with --run-dir.",
        ),
        server_option(
            "optimizers",
            "Custom optimizers for the servers: a Python file, or an entry point of an installed package.",
            metavar="FILE|NAME",
            default="",
            show_default="built-in optimizers alone",
        ),
        server_option(
            "direct-port",
            "Second port of the first server, to push and pull without gRPC; each further one has the next. off: none.",
            type=Parsed("PORT|off", parse_port),
            default="0",
            show_default="free ones",
        ),
    ),
    section(
        "Consistency",
        option(
            "--consistency",
            default="async",
            type=Parsed("POLICY", parse_consistency),
            envvar="PSSERVER_CONSISTENCY",
            help="The consistency policy: async, bounded:S, or sync:N[,backup=B][,aggregate=A].",
        ),
        option(
            "--staleness",
            default="none",
            type=Parsed("HANDLING", parse_staleness),
            envvar="PSSERVER_STALENESS",
            help="The handling of stale pushes: none, scale, delay-compensated[:L] or drop:T.",
        ),
    ),
    section(
        "Storage",
        option(
            "--run-dir",
            type=FOLDER,
            metavar="DIR",
            help="Folder for the checkpoints of the servers, the logs of all processes, and what `psworker runs` and "
            "`psworker plot` show; new or empty, unless --resume.",
        ),
        option("--resume", is_flag=True, help="Continue the run in --run-dir where it stopped."),
        option(
            "--checkpoint-every",
            type=Parsed("INTERVAL", parse_checkpoint_every),
            show_default="60s",
            envvar="PSSERVER_CHECKPOINT_EVERY",
            help="The interval between two checkpoints: 60s, 5m, 1h or 1000steps.",
        ),
        option(
            "--keep",
            type=POSITIVE,
            metavar="N",
            show_default="5",
            envvar="PSSERVER_KEEP",
            help="Number of checkpoints that are kept.",
        ),
        option(
            "--journal",
            is_flag=True,
            envvar="PSSERVER_JOURNAL",
            help="Write each push to disk before it is answered, so that none is ever lost.",
        ),
    ),
    section(
        "Live page",
        option(
            "--http",
            type=HTTP_ADDRESS,
            show_default="no page; without a value, a free port",
            help="Show the job on a live page at this address (psserver monitor), whose URL is printed.",
        ),
        guard_option(),
    ),
    section(
        "Output",
        option(
            "--progress",
            type=click.Choice(config.PROGRESS),
            default="auto",
            help="How to show progress on stderr: live tables, plain lines or off; "
            "auto: live on a terminal, otherwise plain.",
        ),
        option("-q", "--quiet", is_flag=True, help="Show only the output of the program, and errors."),
        log_options(None, "warning; with --quiet: error"),
    ),
    section(
        "Security",
        server_option(
            "tls-cert", "The certificate of the servers and its chain, in PEM.", type=FILE, show_default="no TLS"
        ),
        server_option("tls-key", "Its private key.", type=FILE),
        server_option(
            "tls-ca",
            "The CA by which workers of this machine check the servers, and these the certificates of clients.",
            type=FILE,
        ),
        option(
            "--tls-name",
            metavar="HOST",
            show_default="the address of each server",
            help="The host name in the certificate of the servers.",
        ),
        server_option(
            "client-certificates",
            "Whether clients need a certificate; workers of this machine use the servers'.",
            type=click.Choice(["off", "required"]),
            default="off",
        ),
        server_option(
            "token-file",
            "Tokens for workers of other machines and other users, as `psserver token` writes them; read at the start.",
            type=FILE,
            show_default="tokens of this user alone",
        ),
        server_option(
            "insecure", "Servers without tokens; with --bind, also without TLS for other machines.", is_flag=True
        ),
    ),
)


THREADS = option(
    "--threads",
    type=POSITIVE,
    metavar="N",
    show_default="OMP_NUM_THREADS or similar if set, otherwise cores / workers",
    help="BLAS threads of each worker.",
)


def cluster_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a cluster, of its workers, a script and its arguments; the value of --debug comes first."""
    function = script_command(function)
    for add in reversed(_CLUSTER_OPTIONS):
        function = add(function)
    return function
