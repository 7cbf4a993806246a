"""Initial values of variables (`pswire.specs.initializers`), with hints for familiar names."""

from typing import TYPE_CHECKING

from pswire.specs.initializers import *  # noqa: F403
from pswire.specs.initializers import __all__ as __all__
from psworker import familiar_names


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        raise familiar_names.missing("initializers", name)
