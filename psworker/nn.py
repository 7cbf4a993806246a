"""`import psworker.nn`: the layers, the names of `psworker.model.layers`."""

from typing import TYPE_CHECKING

from psworker.model import layers
from psworker.model.layers import *  # noqa: F403
from psworker.model.layers import __all__ as __all__

#: There are no modules in it: an import of one gets a hint (`psworker._Finder`).
__path__: list[str] = []


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        return getattr(layers, name)  # which has hints
