"""Schedules: learning rates as functions of the server's global step.

A schedule takes the place of a number in an optimizer: `ps.Adam(schedules.CosineDecay(0.001, 10_000))`. The server
evaluates it at its global step, the number of updates that it had made before the one at hand, from 0, so that all
workers agree. They are defined in `pswire.specs.schedules`, which servers have as well.
"""

from typing import TYPE_CHECKING

from pswire.specs.schedules import *  # noqa: F403
from pswire.specs.schedules import Schedule
from pswire.specs.schedules import __all__ as __all__
from psworker import familiar_names

familiar_names.hint_arguments(Schedule.kinds.values())


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        raise familiar_names.missing("schedules", name)
