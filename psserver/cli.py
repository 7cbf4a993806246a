"""The command `psserver`: serve a shard, look at one, ask for its health.

Options become a `ServerConfig`, errors become one line. Decides nothing itself. May import everything of psserver,
pswire, click and rich.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable
from functools import partial

import click
from rich.console import Console

from psserver.config import ServerConfig, parse_shard, parse_size
from psserver.report import ask_status, plain, tables
from psserver.server import serve
from pswire import memory
from pswire.channel import check_address, check_health
from pswire.errors import ConfigurationError, ParamServerError
from pswire.messages import StatusReport

_DEFAULT = ServerConfig()
_option = partial(click.option, show_default=True, show_envvar=True)


class _Group(click.Group):
    """Turns errors of ours into click's one line and exit code 1, unless --debug was given."""

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except ParamServerError as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(str(error)) from error


class _Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in some versions of click only
    """An option's text, read by a function that raises `ConfigurationError`."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """The value; a default is one already."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


_ADDRESS = _Parsed("HOST:PORT", check_address)


@click.group(cls=_Group, context_settings={"auto_envvar_prefix": "PSSERVER", "help_option_names": ["-h", "--help"]})
@click.version_option(package_name="paramserver", prog_name="psserver")
@_option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """The server of an asynchronous parameter server: holds variables, applies gradients, serves weights.

    \b
    One server on this machine, and two workers that train through it:
      psserver serve --bind 127.0.0.1:5000
      psworker run --servers 127.0.0.1:5000 train.py
      psworker run --servers 127.0.0.1:5000 train.py

    \b
    Two shards, each with half of the variables:
      psserver serve --bind 0.0.0.0:5000 --shard 0/2
      psserver serve --bind 0.0.0.0:5001 --shard 1/2

    \b
    What it is doing:
      psserver status 127.0.0.1:5000
    """  # noqa: D301


@main.command("serve")
@_option("--bind", type=_ADDRESS, default=_DEFAULT.bind, help="Where to listen; port 0 takes a free one.")
@_option(
    "--shard",
    type=_Parsed("I/N", parse_shard),
    default="0/1",
    help="Which shard of the job this is, from 0, and how many there are.",
)
@_option(
    "--lease",
    type=float,
    default=_DEFAULT.lease,
    metavar="SECONDS",
    help="Silence after which a worker is taken for dead and its examples go to others.",
)
@_option(
    "--memory-limit",
    type=_Parsed("SIZE", parse_size),
    default=_DEFAULT.memory_limit,
    show_default="80 % of the machine's memory",
    help="Bytes for variables, slots and what is under way, such as 8G.",
)
@_option(
    "--grace", type=float, default=_DEFAULT.grace, metavar="SECONDS", help="What calls under way get to end at a stop."
)
@_option(
    "--max-calls",
    type=int,
    default=_DEFAULT.max_calls,
    help="Callers at a time; those beyond it wait.",
)
@_option(
    "--keep-memory/--no-keep-memory",
    default=_DEFAULT.keep_memory,
    help="Keep the memory of arrays that are freed, for the next ones: faster, but the process never shrinks.",
)
@_option(
    "--reflection/--no-reflection", default=_DEFAULT.reflection, help="Let grpcurl and the like ask what is offered."
)
@_option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="warning",
    help="What is written to standard error.",
)
def serve_command(
    bind: str,
    shard: tuple[int, int],
    lease: float,
    memory_limit: int,
    grace: float,
    max_calls: int,
    keep_memory: bool,
    reflection: bool,
    log_level: str,
) -> None:
    """Serve one shard until SIGTERM or Ctrl-C.

    When it is ready it prints one line with its address. The first Ctrl-C lets the calls under way end, a second one
    ends at once.

    \b
    psserver serve                                   a free port of this machine
    psserver serve --bind 0.0.0.0:5000 --shard 0/2   the first of two shards, for the network
    """  # noqa: D301
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = ServerConfig(bind, *shard, lease, memory_limit, grace, max_calls, keep_memory, reflection)
    if config.keep_memory:
        memory.keep_memory()
    report = asyncio.run(_serve(config))
    click.echo(_summary(report), err=True)


async def _serve(config: ServerConfig) -> StatusReport:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends at once

    def tell(address: str) -> None:
        click.echo(f"psserver: shard {config.shard}/{config.shards} listening on {address}")

    loop.add_signal_handler(signal.SIGINT, end)
    loop.add_signal_handler(signal.SIGTERM, end)
    return await serve(config, tell, stop)


def _summary(report: StatusReport) -> str:
    return (
        f"psserver: shard {report.shard}/{report.shards} stopped at global step {report.global_step:,}: "
        f"{len(report.workers)} workers, {report.repeated:,} pushes or assigns repeated"
    )


_address = click.argument("address", type=_ADDRESS)
_timeout = _option("--timeout", type=float, default=5.0, metavar="SECONDS", help="How long to wait for the answer.")


@main.command("status")
@_address
@_option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@_timeout
def status_command(address: str, as_json: bool, timeout: float) -> None:
    """Show the variables and workers of the shard at ADDRESS.

    \b
    psserver status 127.0.0.1:5000
    psserver status 127.0.0.1:5000 --json | jq .global_step
    """  # noqa: D301
    report = ask_status(address, timeout)
    if as_json:
        click.echo(json.dumps(plain(report), indent=2))
    else:
        Console().print(*tables(report, address), sep="\n")


@main.command("health")
@_address
@_timeout
def health_command(address: str, timeout: float) -> None:
    """Ask the server at ADDRESS whether it serves; the exit code is 0 if so, else 1.

    \b
    psserver health 127.0.0.1:5000 && echo ready
    """  # noqa: D301
    serving = check_health(address, timeout)
    click.echo("SERVING" if serving else "NOT_SERVING")
    if not serving:
        raise SystemExit(1)
