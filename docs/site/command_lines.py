"""Sphinx extension: the commands of a command line and their options, from click, in the sections of `--help`."""

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from psjob.terminal.commands import help_sections
from psserver.cli.main import main as psserver
from psworker.launch.cli import main as psworker

PROGRAMS = {"psserver": psserver, "psworker": psworker}


def contexts(command: click.Command, name: str, parent: click.Context | None = None) -> list[click.Context]:
    """The context of a command, then those of its commands in alphabetical order."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    inner = command.commands.items() if isinstance(command, click.Group) else ()
    return [context, *(found for key, value in sorted(inner) for found in contexts(value, key, context))]


class CommandLine(SphinxDirective):
    """`.. command-line:: psserver` has a section for each command, with its usage, its text and its options."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The sections."""
        return [self._section(context) for context in contexts(PROGRAMS[self.arguments[0]], self.arguments[0])]

    def _section(self, context: click.Context) -> nodes.section:
        path, command = context.command_path, context.command
        section = nodes.section(ids=[nodes.make_id(path)], names=[nodes.fully_normalize_name(path)])
        section += nodes.title(text=path)
        formatter = context.make_formatter()
        command.format_usage(context, formatter)
        command.format_help_text(context, formatter)
        text = formatter.getvalue().rstrip()
        section += nodes.literal_block(text, text, language="text")
        for title, options in help_sections(command, context).items():
            section += nodes.rubric(text=title)
            section += self._options(context, options)
        return section

    def _options(self, context: click.Context, options: list[click.Option]) -> nodes.definition_list:
        """One definition for each option, with an anchor such as `psserver-serve-bind`."""
        items = nodes.definition_list()
        for option in options:
            flags, text = option.get_help_record(context) or ("", "")
            anchor = nodes.make_id(f"{context.command_path} {option.name}")
            term = nodes.term("", "", nodes.literal(text=flags), ids=[anchor])
            items += nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph(text=text)))
        return items


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
