"""Commands whose `--help` shows their options in sections, and the group of commands of a program. Imports click."""

import signal

import click

from psjob.terminal.options import SECTIONS, Option
from pswire.system.signals import raise_at_interrupt


def help_sections(command: click.Command, context: click.Context) -> dict[str, list[click.Option]]:
    """The visible options of a command by the titles of their sections, in the order in which help shows both.

    The options that click adds, such as `--help`, are in the first section.
    """
    options = [one for one in command.get_params(context) if isinstance(one, click.Option) and not one.hidden]
    titles = {one.section for one in options if isinstance(one, Option)} or {Option.section}
    sections: dict[str, list[click.Option]] = {title: [] for title in sorted(titles, key=SECTIONS.index)}
    first = next(iter(sections))
    for one in options:
        sections[one.section if isinstance(one, Option) else first].append(one)
    return sections


class Command(click.Command):
    """A command whose help shows its options in sections (`psjob.terminal.options.section`)."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        for title, options in help_sections(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl([record for one in options if (record := one.get_help_record(ctx))])


class CommandGroup(click.Group):
    """A group of such commands."""

    command_class = Command


class InterruptibleGroup(CommandGroup):
    """The commands of a program: Ctrl-C ends one with exit code 130, as in shells, and without a traceback.

    Click would print "Aborted!" and end with 1.
    """

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        raise_at_interrupt()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(128 + signal.SIGINT)
