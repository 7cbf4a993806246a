"""The command `psserver monitor`. Imports neither numpy nor rich (`psserver.cli.main`)."""

import signal
from pathlib import Path

import click

from psjob.terminal.commands import Command
from psjob.terminal.guard_option import guard_option
from psjob.terminal.log_options import LogOptions, log_options
from psjob.terminal.options import option, section
from psserver.cli.options import HTTP_ADDRESS, addresses_argument, credentials_options
from pswire.errors import ConfigurationError
from pswire.security.credentials import Credentials
from pswire.system.signals import end_at_once

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("monitor", short_help="Serve the live page of a running job.", cls=Command)
@addresses_argument
@section(
    "Live page",
    option("--http", type=HTTP_ADDRESS, default="127.0.0.1:8080", help="Address of the page; port 0 is a free one."),
    guard_option(envvar="PSSERVER_GUARD"),
    option("--http-cert", type=_FILE, show_default="no TLS", help="The certificate of the page and its chain, in PEM."),
    option("--http-key", type=_FILE, help="Its private key."),
    option("--insecure", is_flag=True, help="Let other machines reach a page without TLS, or without tokens."),
)
@credentials_options
@section("Output", log_options("info", prefix="PSSERVER"))
def monitor_command(
    addresses: tuple[str, ...],
    http: str,
    http_cert: Path | None,
    http_key: Path | None,
    insecure: bool,
    guard: str,
    logs: LogOptions,
    credentials: Credentials,
) -> None:
    """Show the job whose shards are at ADDRESSES on a live page, until Ctrl-C; by default that at 127.0.0.1:7070.

    It prints the address of the page. It asks the shards once a second, and changes nothing, but with --guard stop or
    rollback, which need a token of an admin; a shard that does not
    answer is shown as silent. Where servers have a token file, it needs a token itself, and viewers need one of any
    role: as /?token=TOKEN once, as the password that a browser asks for, or as Authorization: Bearer TOKEN.

    \b
    psserver monitor
    psserver monitor host1:7070,host2:7070 --token-file carol.token
    psserver monitor host1:7070 --tls-ca ca.crt --http 0.0.0.0:8080 --http-cert server.crt --http-key server.key
    """  # noqa: D301
    end_at_once(signal.SIGTERM, 0)  # nothing is served yet
    logs.set_up()
    from psserver.cli.monitor import monitor_until_signal
    from psserver.monitor.job_page import PageOptions

    if (http_cert is None) != (http_key is None):
        raise ConfigurationError("--http-cert and --http-key belong together: give both, or neither")
    remedy = "give it --http-cert and --http-key"
    options = PageOptions(http, http_cert, http_key, insecure=insecure, remedy=remedy)
    monitor_until_signal(addresses, options, credentials, guard)
