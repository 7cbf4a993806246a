"""Examples: in memory and memory maps, of functions, of other libraries, iterables; and the order of an epoch.

Programs have `Dataset`, `FunctionDataset`, `Ragged` and `Batch` as `ps.Dataset` and so on; `ps.data.Queue` makes items
in threads, `ps.data.parquet` reads files.
"""

from typing import TYPE_CHECKING

from psworker import familiar_names
from psworker.data.parquet_files import parquet
from psworker.data.queue import Queue

__all__ = ["Queue", "parquet"]


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        raise familiar_names.missing("data", name)
