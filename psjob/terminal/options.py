"""Command-line options: their section in `--help`, and types whose text a function of pswire parses. Imports click."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from pswire.errors import ConfigurationError

#: The titles of the sections of `--help`, in their order. "Advanced" has options whose defaults hardly anyone changes.
SECTIONS = (
    "Options",
    "Sweep",
    "Profile",
    "Serving",
    "Cluster",
    "Worker",
    "Ray",
    "Consistency",
    "Strategy",
    "Transfer",
    "Storage",
    "Replay",
    "Live page",
    "Output",
    "Security",
    "Advanced",
)


class Option(click.Option):
    """An option whose help shows its environment variable, and its default as one types it.

    Attributes:
        section: its section of `--help`, one of `SECTIONS`.
    """

    section = SECTIONS[0]

    def __init__(self, *arguments: Any, **settings: Any) -> None:  # noqa: ANN401 - as `click.Option` has them
        default = settings.get("default")
        shown = f"{default:g}" if isinstance(default, float) else True
        super().__init__(*arguments, **{"show_default": shown, "show_envvar": True} | settings)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The flags and the text; click puts parentheses around a default that is described in words."""
        record = super().get_help_record(ctx)
        if record is not None and isinstance(self.show_default, str):
            return record[0], record[1].replace(f"default: ({self.show_default})", f"default: {self.show_default}")
        return record


option = partial(click.option, cls=Option)


def section(title: str, *options: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds these options to a command, in the section of its help with this title of `SECTIONS`."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        earlier = len(vars(command).get("__click_params__", ()))
        for one in reversed(options):
            command = one(command)
        for parameter in vars(command)["__click_params__"][earlier:]:
            parameter.section = title
        return command

    return add


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in some versions of click only
    """An option's text, called `name`, parsed by a function that raises `ConfigurationError`."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The name as it is: click would write it in capitals, and so values that are not accepted."""
        return self.name

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """The value; a default is not text."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)
