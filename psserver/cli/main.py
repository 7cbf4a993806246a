"""The command `psserver`: serve a shard, show the status of a job, check health.

Options become a `ServerConfig`, errors become one line. Each command imports its own dependencies, since an
orchestrator runs `health` every few seconds: this module must not import numpy or rich.
"""

import logging
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from psjob.terminal.commands import InterruptibleGroup
from psjob.terminal.guard_option import ACTING, guard_option
from psjob.terminal.log_options import LogOptions, log_options
from psjob.terminal.logs import identify, writes_json
from psjob.terminal.options import Parsed, option, section
from psserver.cli.checkpoint_commands import checkpoint_group, export_command
from psserver.cli.job_commands import jobs_command, quarantine_command, reset_command
from psserver.cli.monitor_command import monitor_command
from psserver.cli.options import (
    HTTP_ADDRESS,
    SECONDS,
    addresses_argument,
    credentials_options,
    json_option,
    optimizers_option,
    timeout_option,
    tls_options,
)
from psserver.cli.security_commands import certs_command, token_group
from psserver.config import (
    CLIENT_CERTIFICATES,
    ServerConfig,
    parse_shard,
    parse_size,
    parse_timeout,
)
from pswire.addresses import DEFAULT_ADDRESS, check_address, local_address, parse_port
from pswire.errors import ParamServerError
from pswire.network.channel import check_health
from pswire.network.discovery import parse_servers
from pswire.security.credentials import Credentials
from pswire.specs.checkpoints import JournalSync, parse_checkpoint_every
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.gradient_norm import parse_gradient_norm
from pswire.system.host import refuse_windows
from pswire.system.signals import end_at_once

log = logging.getLogger(__name__)

_DEFAULT = ServerConfig()
_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Group(InterruptibleGroup):
    """Shows paramserver errors as one line with exit code 1, unless --debug was given."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ParamServerError as error:
            if ctx.params["debug"]:
                raise
            if writes_json():
                log.error("%s", error)
                raise SystemExit(1) from error
            raise click.ClickException(str(error)) from error


_ADDRESS = Parsed("HOST:PORT", check_address)


@click.group(cls=_Group, context_settings={"auto_envvar_prefix": "PSSERVER", "help_option_names": ["-h", "--help"]})
@click.version_option(package_name="paramserver", prog_name="psserver")
@option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """The server of an asynchronous parameter server: holds variables, applies gradients, serves weights.

    \b
    One server on this machine, and two workers that train through it:
      psserver serve
      psworker run train.py
      psworker run train.py

    \b
    The status of the job:
      psserver status

    They use 127.0.0.1:7070 by default, and other addresses as --bind, --servers and ADDRESSES; these two take names for
    all servers as well (file:/path, dns:///name:port, dns+srv://name).
    """  # noqa: D301


def _field(name: str, text: str, kind: Any = None, **settings: Any) -> Callable[[_Command], _Command]:  # noqa: ANN401
    """The option of a field of `ServerConfig`, with its default."""
    default = getattr(_DEFAULT, name.replace("-", "_"))
    flags = f"--{name}/--no-{name}" if isinstance(default, bool) else f"--{name}"
    return option(flags, type=kind, default=default, help=text, **settings)


_POLICY, _HANDLING = Parsed("POLICY", parse_consistency), Parsed("HANDLING", parse_staleness)
_SHARD, _SIZE, _TIME = Parsed("I/N", parse_shard), Parsed("SIZE", parse_size), {"kind": float, "metavar": "SECONDS"}
_FILE, _COUNT = click.Path(dir_okay=False, path_type=Path), {"kind": int, "metavar": "N"}


#: The environment variables of options of a server are `PSSERVER_` and their names, as in `psworker local`.
@main.command(
    "serve", short_help="Serve one shard of the variables.", context_settings={"auto_envvar_prefix": "PSSERVER"}
)
@section(
    "Serving",
    option(
        "--bind",
        type=_ADDRESS,
        default=DEFAULT_ADDRESS,
        help="Address to listen on: host:port, [v6]:port or unix:/path; port 0 is a free one.",
    ),
    option(
        "--direct-port",
        type=Parsed("PORT|off", parse_port),
        default="0",
        show_default="a free one",
        help="A second port, on which workers push and pull without gRPC; 0: a free one, off: none.",
    ),
    option("--shard", type=_SHARD, default="0/1", help="Index of this shard, from 0, and number of shards of the job."),
    _field(
        "linger",
        "Serve a single program, and exit this long after its last worker has left; at least four leases if none "
        "finished. Without it the server runs until it is stopped.",
        **_TIME,
    ),
    _field(
        "lease",
        "Silence after which a worker is lost: others get its examples, and its slow transfers end.",
        **_TIME,
    ),
    optimizers_option,
    _field(
        "memory-limit",
        "Memory for variables, slots, and calls in progress, such as 8G.",
        _SIZE,
        show_default="80 % of the memory of the machine or its container",
    ),
)
@section(
    "Consistency",
    _field("consistency", "The consistency policy, as above; the same on all shards.", _POLICY),
    _field("staleness", "The handling of stale pushes, as above; the same on all shards.", _HANDLING),
    option(
        "--max-gradient-norm",
        type=Parsed("N:clip|N:reject|off", parse_gradient_norm),
        default="off",
        help="Largest L2 norm of the gradients of a push on this shard; larger ones are scaled down to it, or dropped.",
    ),
)
@section(
    "Storage",
    _field(
        "checkpoint-dir",
        "Folder of checkpoints and journal, from which a restarted server continues; all shards may share it.",
        click.Path(file_okay=False, path_type=Path),
        show_default="nothing is kept",
    ),
    _field(
        "checkpoint-every",
        "Time or steps between two checkpoints, such as 60s or 1000steps; shard 0 begins them for all.",
        Parsed("INTERVAL", parse_checkpoint_every),
        show_default="on demand, and at a stop",
    ),
    _field("keep", "Complete checkpoints that stay.", **_COUNT),
    _field("journal", "Write every change to disk before it is acknowledged: a restarted server has lost nothing."),
    option(
        "--journal-sync",
        type=click.Choice([sync.value for sync in JournalSync]),
        default=_DEFAULT.journal_sync.value,
        help="When the journal is synced: `every` survives a loss of power, `100ms` and `off` the death of the "
        "process.",
    ),
    _field(
        "keep-journal",
        "Keep the whole journal and the checkpoint it begins with, for `psserver replay`: it grows with each push.",
    ),
    _field(
        "on-lost-state",
        "When a shard restarts without its last changes: all go back to a common checkpoint, or the job fails.",
        click.Choice(["rollback", "fail"]),
    ),
)
@section(
    "Security",
    _field(
        "tls-cert",
        "The server's certificate and its chain, in PEM; read again when it changes.",
        _FILE,
        show_default="no TLS",
    ),
    _field("tls-key", "The private key of the certificate.", _FILE),
    _field("tls-ca", "The CA of the clients' certificates.", _FILE),
    _field("client-certificates", "Whether clients need a certificate.", click.Choice(CLIENT_CERTIFICATES)),
    _field(
        "token-file",
        "Tokens of callers and their roles, as `psserver token` writes them; read again when it changes.",
        _FILE,
        show_default="every caller may do everything",
    ),
    _field("insecure", "Let other machines reach a server without TLS, or without tokens."),
)
@section(
    "Live page",
    option(
        "--http",
        type=HTTP_ADDRESS,
        show_default="no page",
        help="Address of the live page, metrics and health checks by HTTP, such as 127.0.0.1:8080.",
    ),
    option(
        "--http-servers",
        type=Parsed("HOST:PORT,...", parse_servers),
        show_default="this one alone",
        help="All servers of the job, in the order of their shards, or a name for them.",
    ),
    option(
        "--client-token-file",
        type=click.Path(dir_okay=False),
        show_default="the token of this user's psworker local",
        help="A file with a token for --http-servers, of any role.",
    ),
    guard_option(envvar="PSSERVER_GUARD"),
)
@section("Output", log_options("info"))
@section(
    "Advanced",
    option(
        "--progress-timeout",
        type=Parsed("SECONDS|off", parse_timeout),
        default=f"{_DEFAULT.progress_timeout:g}",
        help="How long bounded:S and sync:N wait for a live worker that does not push; shorter than --timeout of "
        "workers.",
    ),
    _field("grace", "Time for calls in progress at a stop.", **_TIME),
    _field("max-workers", "Live workers; further ones wait for one to leave.", **_COUNT),
    _field("max-calls", "Concurrent unary calls; workers retry excess ones.", **_COUNT),
    _field("journal-limit", "Size of the journal; a checkpoint begins at half of it.", _SIZE, show_default="4G"),
    _field("keep-memory", "Keep the memory of freed arrays: faster, but the process never shrinks."),
    _field("shared-memory", "Share memory, and a Unix socket, with workers of this host and user."),
    _field(
        "shared-memory-limit",
        "Shared memory for all workers; at most half for one.",
        _SIZE,
        show_default="half of the memory of the machine or its container",
    ),
    _field("reflection", "Let tools such as grpcurl list the methods (extra `reflection`)."),
)
def serve_command(
    shard: tuple[int, int],
    logs: LogOptions,
    http: str | None,
    http_servers: tuple[str, ...] | None,
    guard: str,
    client_token_file: str | None,
    **fields: Any,  # noqa: ANN401 - of ServerConfig
) -> None:
    """Serve one shard until SIGTERM or Ctrl-C, or with --linger until its job is over.

    A server that is ready prints one line with its address. The first Ctrl-C lets calls in progress finish, a second
    one exits at once.

    \b
    psserver serve                                   one shard, for workers of this machine
    psserver serve --shard 0/2                       the first of two shards on this machine,
    psserver serve --shard 1/2 --bind 127.0.0.1:7071 and the second
    psserver serve --linger 10                       ends 10 s after its job
    psserver serve --checkpoint-dir run --checkpoint-every 60s --journal
    psserver serve --http 127.0.0.1:8080             with the live page of its job

    \b
    For other machines (psserver certs and psserver token make the files):
    psserver serve --bind 0.0.0.0:7070 --tls-cert server.crt --tls-key server.key --token-file tokens

    \b
    --consistency: the policy by which pushes make an update
      async                 each push at once; no worker waits
      bounded:2             no worker is more than 2 steps ahead of the slowest
      sync:3                the mean of the first 3 gradients of each step
      sync:3,backup=1       the same with 4 workers; the late push is dropped
      sync:5,aggregate=median  instead of the mean, which one wrong gradient can spoil; or trimmed:0.2

    \b
    --staleness: the handling of a push whose weights have changed since
      none                  it is applied like any other
      scale                 its learning rate is divided by its staleness
      delay-compensated[:L] its gradient is adapted to the current weights, by strength L (0.04)
      drop:10               it is not applied if its staleness is above 10
    """  # noqa: D301
    refuse_windows("psserver serve")
    if http is None and http_servers:
        raise click.UsageError("--http-servers needs --http, the address of the page.")
    if http is None and guard in ACTING:
        raise click.UsageError(f"--guard {guard} needs --http: what shows the page also looks for failures.")
    end_at_once(signal.SIGTERM, 0)  # nothing is served yet
    from psserver.cli.serve import serve_until_signal

    logs.set_up()
    identify("shard", shard[0], lambda: None)
    fields["journal_sync"] = JournalSync(fields["journal_sync"])
    config = ServerConfig(shard=shard[0], shards=shard[1], default_key=None, **fields)
    if http is None:
        serve_until_signal(config)
        return
    from psserver.cli.page import page_beside

    serve_until_signal(config, page_beside(config, http, http_servers, client_token_file, guard))


def _parse_replayed(text: str) -> tuple[int, int | None]:
    """The index of a shard, and the number of shards if it is given."""
    return parse_shard(text) if "/" in text else (parse_shard(f"{text}/999999")[0], None)


_REPLAYED = Parsed("I[/N]", _parse_replayed)


@main.command("status", short_help="Show a running job.")
@addresses_argument
@json_option
@option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@option("--every", type=SECONDS, default=1.0, help="With --watch: the time between two requests.")
@timeout_option
@credentials_options
def status_command(
    addresses: tuple[str, ...], as_json: bool, watch: bool, every: float, timeout: float, credentials: Credentials
) -> None:
    """Show the job whose shards are at ADDRESSES, separated by commas; without them at 127.0.0.1:7070.

    A shard that does not answer is shown as silent, and the exit code is 1; --watch continues without it, and its exit
    code is 0. When none answers it is an error.

    --json prints an object of the whole job, with its variables, its workers, and in "shards" the report of each shard;
    with --watch it prints one such object per line.

    \b
    psserver status                                   one shard on this machine
    psserver status host1:7070,host2:7070 --watch     a job of two, live, each second
    psserver status host1:7070,host2:7070 --json | jq '.shards[].traffic'
    psserver status host1:7070 --json --watch --every 10 >> job.jsonl
    """  # noqa: D301
    from psserver.cli.status import show_once, show_repeatedly

    if watch:
        show_repeatedly(addresses, timeout, every, credentials, as_json=as_json)
    elif not show_once(addresses, timeout, credentials, as_json=as_json):
        raise SystemExit(1)


@main.command("replay", short_help="Step a journal again, offline.")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@section(
    "Replay",
    optimizers_option,
    option("--shard", type=_REPLAYED, default="0", help="Which shard: I, or I/N if DIR has journals of several N."),
    option(
        "--from",
        "number",
        type=click.IntRange(min=0),
        metavar="N",
        show_default="the oldest one",
        help="The checkpoint to begin with.",
    ),
    option(
        "--verify", is_flag=True, help="Compare with every later checkpoint, bit by bit; exit code 1 if one differs."
    ),
    option(
        "--until", type=click.IntRange(min=0), metavar="N", show_default="the end", help="The global step to stop at."
    ),
    option("--stop-at-nan/--no-stop-at-nan", default=True, help="Stop at a loss or an update that is not finite."),
    option(
        "--stop-above",
        type=click.FloatRange(min=0),
        metavar="X",
        default=math.inf,
        help="Stop at a loss, or norm of a gradient or update, above this.",
    ),
)
@section(
    "Output",
    option("--watch", multiple=True, metavar="VARIABLE", help="A variable whose norms are printed."),
    option("--quiet", is_flag=True, help="Print only the summary."),
    option("--json", "as_json", is_flag=True, help="Print JSON, an object per line, for programs."),
    option(
        "--output",
        type=click.Path(path_type=Path),
        help="Write the state at the end: a file NAME.safetensors of the variables, or a new folder with a checkpoint.",
    ),
)
def replay_command(
    folder: Path,
    shard: tuple[int, int | None],
    number: int | None,
    until: int | None,
    stop_at_nan: bool,
    stop_above: float,
    verify: bool,
    optimizers: str,
    **options: Any,  # noqa: ANN401 - of ReplayOptions
) -> None:
    """Step the journal of a shard in DIR again, offline, to the same bits, and print what each push did.

    DIR is the --checkpoint-dir of servers with --journal. It is only read, also beside a running server, up to its last
    complete record. A journal goes back to the last checkpoint; with --keep-journal, to the beginning.

    \b
    psserver replay run                                 every push: step, staleness, loss, norms, outcome
    psserver replay run --watch W --stop-above 100      until a loss or norm is above 100, with the norms of W
    psserver replay run --until 1200 --output at-1200   the state after step 1200, from which a server can start
    psserver replay run --quiet                         only the summary
    psserver replay run --verify                        whether all checkpoints are what the journal gives
    """  # noqa: D301
    refuse_windows("psserver replay")
    from psserver.cli.replay import ReplayOptions, open_replay, show, verified
    from psserver.custom_optimizers import load_optimizers
    from psserver.replay.summary import StopRule

    load_optimizers(optimizers)
    replay = open_replay(folder, *shard, number)
    if verify:
        if until is not None or options["output"] is not None or options["watch"]:
            raise click.UsageError("--verify replays all records, and only compares: leave the other options out.")
        if not verified(folder, replay, as_json=options["as_json"]):
            raise SystemExit(1)
        return
    show(folder, replay, ReplayOptions(until, stop=StopRule(stop_at_nan, stop_above), **options))


@main.command("health", short_help="Ask a server whether it is serving.")
@click.argument("address", metavar="[ADDRESS]", type=_ADDRESS, default=DEFAULT_ADDRESS, envvar="PSSERVER_BIND")
@timeout_option
@tls_options
def health_command(address: str, timeout: float, credentials: Credentials) -> None:
    """Ask the server at ADDRESS whether it is serving; the exit code is 0 if it is, otherwise 1.

    Without ADDRESS it asks the server on this machine whose address is PSSERVER_BIND, as in a container; by default
    127.0.0.1:7070.

    \b
    psserver health && echo ready
    psserver health host1:7070
    PSSERVER_BIND=0.0.0.0:7071 psserver health
    """  # noqa: D301
    serving = check_health(local_address(address), timeout, credentials)
    click.echo("SERVING" if serving else "NOT_SERVING")
    if not serving:
        raise SystemExit(1)


main.add_command(checkpoint_group)
main.add_command(certs_command)
main.add_command(export_command)
main.add_command(jobs_command)
main.add_command(monitor_command)
main.add_command(quarantine_command)
main.add_command(reset_command)
main.add_command(token_group)
