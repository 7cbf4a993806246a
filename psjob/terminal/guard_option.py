"""The option `--guard`, which several commands have. Imports neither numpy nor rich."""

from collections.abc import Callable
from typing import Any

import click

from psjob.terminal.options import option

#: What the guard does about findings of level "error": nothing is looked for, a warning, the job is stopped, or all
#: shards go back to a checkpoint.
MODES = ("off", "warn", "stop", "rollback")

#: Those that change the job.
ACTING = ("stop", "rollback")


def guard_option(*, envvar: str | None = None) -> Callable[..., Any]:
    """The option, for a command that gets it as `guard`."""
    return option(
        "--guard",
        type=click.Choice(MODES),
        default="warn",
        envvar=envvar,
        help="What to do when training fails in one of the ways that asynchrony brings: warn, with cause and remedy; "
        "stop the job; or roll back to the newest checkpoint from before, and apply the remedy.",
    )
