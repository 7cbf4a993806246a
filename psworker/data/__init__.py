"""Examples: datasets in memory and memory maps, functions, iterables; and the order in which an epoch reads them.

Programs have `Dataset`, `FunctionDataset`, `Ragged` and `Batch` as `ps.Dataset` and so on; `Queue` is `ps.data.Queue`.
"""

from typing import TYPE_CHECKING

from psworker import familiar_names
from psworker.data.queue import Queue

__all__ = ["Queue"]


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        raise familiar_names.missing("data", name)
