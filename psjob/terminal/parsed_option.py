"""The type of command-line options whose text a function of pswire parses. Imports click."""

from collections.abc import Callable

import click

from pswire.errors import ConfigurationError


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in some versions of click only
    """An option's text, called `name`, parsed by a function that raises `ConfigurationError`."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """The value; a default is not text."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)
