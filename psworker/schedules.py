"""Schedules, which take the place of a learning rate (`pswire.specs.schedules`), with hints for familiar names."""

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
