"""The options `--log-level` and `--log-format`, which several commands have. Imports neither numpy nor rich."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import click

from psjob.terminal.logs import FORMATS, LEVELS, LOGGERS, set_up_logs
from psjob.terminal.options import option

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class LogOptions:
    """A level of `LEVELS`, or "" without one, and one of `FORMATS`; `changed`: one of them is not the default."""

    level: str
    form: str
    changed: bool = True

    def set_up(self, *, program: bool = False) -> None:
        """Log to standard error, with other libraries; of a process that runs a `program`, only what is ours.

        Such a program may set up logging itself, and then has our records too, unless the options are changed.
        """
        if program:
            set_up_logs(self.level, self.form, LOGGERS, exclusive=self.changed)
        else:
            set_up_logs(self.level, self.form, ("",))


def log_options(
    default: str | None, shown: str | None = None, *, prefix: str = ""
) -> Callable[[_Command], Callable[..., Any]]:
    """The options, for a command that gets them as `logs`; `default` is the level, `shown` its description in help.

    The names of their environment variables begin with `prefix`, by default the command's.
    """

    def decorated(command: _Command) -> Callable[..., Any]:
        @wraps(command)
        def with_logs(*arguments: Any, log_level: str | None, log_format: str, **options: Any) -> object:  # noqa: ANN401
            changed = log_level != default or log_format != "text"
            return command(*arguments, logs=LogOptions(log_level or "", log_format, changed), **options)

        level = option(
            "--log-level",
            type=click.Choice(LEVELS, case_sensitive=False),
            envvar=f"{prefix}_LOG_LEVEL" if prefix else None,
            default=default,
            show_default=shown or True,
            help="The lowest level that is logged to standard error.",
        )
        form = option(
            "--log-format",
            type=click.Choice(FORMATS),
            envvar=f"{prefix}_LOG_FORMAT" if prefix else None,
            default="text",
            help="Lines for people, or a JSON object per line.",
        )
        return level(form(with_logs))

    return decorated
