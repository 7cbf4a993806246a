"""The options `--log-level` and `--log-format`, which several commands have. Imports neither numpy nor rich."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from pswire.logs import FORMATS, LEVELS, LOGGERS, set_up_logs

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class LogOptions:
    """A level of `LEVELS`, or "" without one, and one of `FORMATS`; `given`: the user has named one of them."""

    level: str
    form: str
    given: bool = True

    def set_up(self, *, program: bool = False) -> None:
        """Log to standard error, with other libraries; of a process that runs a `program`, only what is ours.

        Such a program may set up logging itself, and then has our records too, unless the options are given.
        """
        if program:
            set_up_logs(self.level, self.form, LOGGERS, exclusive=self.given)
        else:
            set_up_logs(self.level, self.form, ("",))


def log_options(
    default: str | None, shown: str | None = None, *, prefix: str = ""
) -> Callable[[_Command], Callable[..., Any]]:
    """The options, for a command that gets them as `logs`; `default` is the level, `shown` its description in help.

    The names of their environment variables begin with `prefix`, by default that of the command.
    """

    def decorated(command: _Command) -> Callable[..., Any]:
        @wraps(command)
        def with_logs(*arguments: Any, log_level: str | None, log_format: str, **options: Any) -> object:  # noqa: ANN401
            source = click.get_current_context().get_parameter_source
            given = any(source(name) is not ParameterSource.DEFAULT for name in ("log_level", "log_format"))
            return command(*arguments, logs=LogOptions(log_level or "", log_format, given), **options)

        level = click.option(
            "--log-level",
            type=click.Choice(LEVELS, case_sensitive=False),
            envvar=f"{prefix}_LOG_LEVEL" if prefix else None,
            default=default,
            show_default=shown or True,
            show_envvar=True,
            help="The lowest level that is logged to standard error.",
        )
        form = click.option(
            "--log-format",
            type=click.Choice(FORMATS),
            envvar=f"{prefix}_LOG_FORMAT" if prefix else None,
            default="text",
            show_default=True,
            show_envvar=True,
            help="How: lines for people, or a JSON object a line.",
        )
        return level(form(with_logs))

    return decorated
