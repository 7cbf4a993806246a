"""The group of commands of a command line: Ctrl-C ends it with exit code 130, as in shells, and without a traceback."""

import signal

import click

from pswire.system.signals import raise_at_interrupt


class InterruptibleGroup(click.Group):
    """Ends a command that raises `KeyboardInterrupt`; click would print "Aborted!" and end with 1."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        raise_at_interrupt()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(128 + signal.SIGINT)
