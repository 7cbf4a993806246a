"""`import psworker.ops`: the ops, the names of `psworker.autodiff.ops`."""

from typing import TYPE_CHECKING

from psworker.autodiff import ops
from psworker.autodiff.ops import *  # noqa: F403
from psworker.autodiff.ops import __all__ as __all__

#: There are no modules in it: an import of one gets a hint (`psworker._Finder`).
__path__: list[str] = []


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        return getattr(ops, name)  # which has hints
