"""How tables of other libraries are recognized, without an import of any, and opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pswire.system.extras import missing_package

if TYPE_CHECKING:
    from psworker.data.arrow import ArrowTable


class ArrowStream(Protocol):
    """A table or a column of another library, by the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A capsule `arrow_array_stream`."""


def is_table(value: object) -> bool:
    """Whether a value is a table, or a column, that gives its memory by the Arrow C stream interface.

    Not one of pandas, which has its columns as arrays.
    """
    return hasattr(value, "__arrow_c_stream__") and hasattr(value, "__len__") and not hasattr(value, "isna")


def opened(table: object, owner: str) -> ArrowTable:
    """The rows of a table, or of one column. Raises as `ArrowTable`; ConfigurationError if pyarrow is not installed."""
    try:
        from psworker.data.arrow import ArrowTable
    except ModuleNotFoundError:
        raise missing_package("Tables of other libraries need", "parquet") from None
    return ArrowTable(table, owner)
