"""Options and arguments that several commands have. Imports neither numpy nor rich (`psserver.cli.main`)."""

from functools import partial

import click

from pswire.addresses import DEFAULT_ADDRESS, parse_addresses
from pswire.errors import ConfigurationError
from pswire.parsed_option import Parsed
from pswire.specs.spec import check_number

#: An option whose help shows its default and its environment variable.
option = partial(click.option, show_default=True, show_envvar=True)


def _parse_seconds(text: str) -> float:
    try:
        return check_number("", float(text), 0, 86_400, open_low=True, closed_high=True)
    except ValueError as error:
        raise ConfigurationError(f"{text!r}: must be a number of seconds above 0 and at most 86400 (a day)") from error


SECONDS = Parsed("SECONDS", _parse_seconds)

#: The servers of a job, in the order of their shards.
addresses_argument = click.argument(
    "addresses", metavar="[ADDRESSES]", type=Parsed("HOST:PORT,...", parse_addresses), default=DEFAULT_ADDRESS
)
json_option = option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
timeout_option = option("--timeout", type=SECONDS, default=5.0, help="Time to wait for an answer.")
