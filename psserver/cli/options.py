"""Options and arguments that several commands have. Imports neither numpy nor rich (`psserver.cli.main`)."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from psjob.terminal.options import Parsed, option, section
from pswire.addresses import DEFAULT_ADDRESS, check_http_address
from pswire.errors import ConfigurationError
from pswire.network.discovery import parse_servers
from pswire.security.credentials import Credentials
from pswire.specs.spec import check_number


def _parse_seconds(text: str) -> float:
    try:
        return check_number("", float(text), 0, 86_400, open_low=True, closed_high=True)
    except ValueError as error:
        raise ConfigurationError(f"{text!r}: must be a number of seconds above 0 and at most 86400 (a day)") from error


SECONDS = Parsed("SECONDS", _parse_seconds)

HTTP_ADDRESS = Parsed("HOST:PORT", check_http_address)

#: The servers of a job, in the order of their shards.
addresses_argument = click.argument(
    "addresses", metavar="[ADDRESSES]", type=Parsed("HOST:PORT,...", parse_servers), default=DEFAULT_ADDRESS
)
json_option = option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
timeout_option = option("--timeout", type=SECONDS, default=5.0, help="Time to wait for an answer.")

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: As `psserver serve` has it, for commands that read the checkpoints or the journal of a job.
optimizers_option = option(
    "--optimizers",
    metavar="FILE|NAME",
    default="",
    envvar="PSSERVER_OPTIMIZERS",
    show_default="built-in optimizers alone",
    help="Custom optimizers of the job: a Python file, or an entry point of an installed package.",
)
_FILE = click.Path(dir_okay=False)
#: The environment variables are the server's own, whose health check needs them too; except for the token:
#: a server has a file of hashes under PSSERVER_TOKEN_FILE.
_TLS_OPTIONS = (
    option("--tls-ca", type=_FILE, envvar="PSSERVER_TLS_CA", show_default="no TLS", help="The CA to check servers by."),
    option(
        "--tls-cert",
        type=_FILE,
        envvar="PSSERVER_TLS_CERT",
        help="A certificate to show to servers that ask for one.",
    ),
    option("--tls-key", type=_FILE, envvar="PSSERVER_TLS_KEY", help="Its private key."),
    option(
        "--tls-name",
        metavar="HOST",
        envvar="PSSERVER_TLS_NAME",
        show_default="the host in the address",
        help="The host name that the certificates of all servers must have.",
    ),
)
_TOKEN_OPTION = option(
    "--token-file",
    type=_FILE,
    envvar="PSSERVER_CLIENT_TOKEN_FILE",
    show_default="the token of this user's psworker local",
    help="A file with a token for the servers.",
)


def _credentials_options(command: Callable[..., Any], *added: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(command)
    def with_credentials(
        *arguments: Any,  # noqa: ANN401 - of the command
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        tls_name: str | None,
        token_file: str | None = None,
        **options: Any,  # noqa: ANN401
    ) -> object:
        credentials = Credentials(tls_ca or "", tls_cert or "", tls_key or "", token_file or "", tls_name or "")
        return command(*arguments, credentials=credentials, **options)

    return section("Security", *added)(with_credentials)


def tls_options(command: _Command) -> Callable[..., Any]:
    """The options of TLS, for a command that calls servers; it gets `credentials`."""
    return _credentials_options(command, *_TLS_OPTIONS)


def credentials_options(command: _Command) -> Callable[..., Any]:
    """The options of TLS and of a token, for a command that calls servers; it gets `credentials`."""
    return _credentials_options(command, *_TLS_OPTIONS, _TOKEN_OPTION)
