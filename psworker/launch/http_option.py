"""The option `--http [ADDRESS]` of `psworker local`, whose value may be left out. Must not import numpy."""

import click

from psjob.terminal.commands import Command
from psjob.terminal.options import Parsed
from pswire.addresses import check_http_address
from pswire.errors import ConfigurationError

HTTP_ADDRESS = Parsed("[HOST:PORT]", check_http_address)

#: A free port of this machine.
FREE_ADDRESS = "127.0.0.1:0"


class LocalCommand(Command):
    """A command with `--http`: what follows it is its value if that is an address, and else the next argument.

    Click would take the script for the value: `psworker local --http train.py`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give `--http` the address of a free port if it has no other."""
        with_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            if args[place] == "--http" and not _is_address(args[place + 1 : place + 2]):
                args = [*args[:place], f"--http={FREE_ADDRESS}", *args[place + 1 :]]
            place += 2 if args[place] in with_value else 1
        return super().parse_args(ctx, args)


def _is_address(following: list[str]) -> bool:
    try:
        check_http_address("".join(following))
    except ConfigurationError:
        return False
    return True
