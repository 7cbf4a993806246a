"""Tables of other libraries, read by pyarrow where they are. The only module, with `parquet_files`, that imports it.

Rows become columns when they are taken: nothing is copied before, so memory-mapped tables stay on disk. Others import
this module by `arrow_stream.opened`. Knows no datasets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types

from pswire.errors import DatasetError
from pswire.tensors.values import Array
from psworker.data.ragged import Column, Ragged, gathered, null_message, positions_of

#: The values of a column at these rows, (n,) int64: copies.
Take: TypeAlias = Callable[[Array], Column]

_TEXT = (pa.string(), pa.large_string(), pa.string_view())
_BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())
#: What to do with a column of another type.
_UNSUPPORTED = {
    types.is_decimal: "decimals; cast them to float64",
    types.is_map: "maps; make columns of their values",
    types.is_struct: "structs; make their fields columns of their own (flatten, unnest), or of images in a Hugging "
    'Face dataset give dataset.with_format("numpy")',
}


class ArrowTable:
    """The rows of a table of another library, or of one column, then named "". Its types in a batch: docs/data.md.

    `table` has `__arrow_c_stream__`; `owner` names it in messages. Raises DatasetError for a null, for columns of
    other types, or without rows.
    """

    __slots__ = ("_chunks", "_starts")

    def __init__(self, table: Any, owner: str) -> None:  # noqa: ANN401
        try:
            chunks = pa.chunked_array(table).chunks
        except (OSError, pa.ArrowException) as error:
            raise DatasetError(f"{owner} cannot be read: {error}") from error
        self._chunks = [_chunk(chunk, owner) for chunk in chunks]
        self._starts = np.cumsum([0, *map(len, chunks)])
        if not len(self):
            raise DatasetError(f"{owner} has no rows; give at least one example")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, rows: Array) -> dict[str, Column]:
        """The columns of these rows, (n,) int64, in this order: copies."""
        return gathered(
            self._starts, lambda number, rows: {n: of(rows) for n, of in self._chunks[number].items()}, rows
        )

    def columns(self) -> dict[str, Column]:
        """The columns of all rows: copies."""
        return self.take(np.arange(len(self)))


def _chunk(chunk: Any, owner: str) -> dict[str, Take]:  # noqa: ANN401
    """A function for each column of some rows, which are counted from 0."""
    if not types.is_struct(chunk.type):
        return {"": _column(chunk, owner)}
    columns: dict[str, Take] = {}
    for field, values in zip(chunk.type, chunk.flatten(), strict=True):
        what = f"{owner}, column {field.name!r}"
        if field.name in columns:
            raise DatasetError(f"{what}: there are two of this name; rename one")
        columns[field.name] = _column(values, what)
    return columns


def _column(values: Any, what: str) -> Take:  # noqa: ANN401
    """A function for the values of a column. Raises DatasetError if one is null, or for a type that makes no column."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values.null_count:
        raise DatasetError(f"{what}: {null_message(values.null_count, len(values))}")
    kind = values.type
    if types.is_dictionary(kind):
        codes, of_codes = values.indices.to_numpy(), _column(values.dictionary, what)
        return lambda rows: of_codes(codes[rows].astype(np.int64))
    if types.is_list(kind) or types.is_large_list(kind):
        offsets, inner = values.offsets.to_numpy(), _inner(values, what)
        return lambda rows: _lists(offsets, inner, rows)
    if types.is_fixed_size_list(kind):
        size, of_size = kind.list_size, _inner(values, what)
        return lambda rows: _fixed_lists(size, of_size, rows)
    if kind in _TEXT:
        return lambda rows: np.array(_objects(values, rows), np.dtypes.StringDType())
    if kind in _BINARY:
        return lambda rows: _bytes(values, rows)
    if types.is_fixed_size_binary(kind):
        return lambda rows: _joined(_objects(values, rows)).reshape(len(rows), kind.byte_width)
    if types.is_boolean(kind):
        return lambda rows: values.take(pa.array(rows)).to_numpy(zero_copy_only=False)
    if types.is_integer(kind) or types.is_floating(kind):
        numbers = values.to_numpy()
        return lambda rows: numbers[rows]
    if types.is_temporal(kind) and not types.is_interval(kind):
        unit = "D" if types.is_date32(kind) else getattr(kind, "unit", "ms")
        dtype = f"{'m' if types.is_time(kind) or types.is_duration(kind) else 'M'}8[{unit}]"
        counts = values.view(f"int{kind.bit_width}").to_numpy()
        return lambda rows: counts[rows].astype(dtype)
    other = f"values of the Arrow type {kind}; cast them to numbers, text or lists"
    raise DatasetError(f"{what}: {next((text for is_it, text in _UNSUPPORTED.items() if is_it(kind)), other)}")


def _inner(lists: Any, what: str) -> Callable[[Array], Array]:  # noqa: ANN401
    """The function for the values of lists, which are arrays."""
    values = lists.flatten()
    kind = getattr(values.type, "storage_type", values.type)
    if types.is_list(kind) or types.is_large_list(kind) or kind in _BINARY:
        raise DatasetError(f"{what}: lists of lists or of binary values; flatten them, or make the inner size fixed")
    return _column(values, f"{what}, in its lists")  # type: ignore[return-value]


def _lists(offsets: Array, inner: Callable[[Array], Array], rows: Array) -> Ragged:
    starts = offsets[rows].astype(np.int64)
    positions, splits = positions_of(starts, offsets[rows + 1] - starts)
    return Ragged.from_splits(inner(positions - offsets[0]), splits)


def _fixed_lists(size: int, inner: Callable[[Array], Array], rows: Array) -> Array:
    flat = inner((rows[:, np.newaxis] * size + np.arange(size)).ravel())
    return flat.reshape(len(rows), size, *flat.shape[1:])


def _objects(values: Any, rows: Array) -> list[Any]:  # noqa: ANN401
    """Texts or bytes, one by one: pyarrow has no `take` of views."""
    return [values[row].as_py() for row in rows.tolist()]


def _bytes(values: Any, rows: Array) -> Ragged:  # noqa: ANN401
    several = _objects(values, rows)
    return Ragged.from_splits(_joined(several), np.cumsum([0, *map(len, several)]))


def _joined(several: list[bytes]) -> Array:
    return np.frombuffer(bytearray(b"".join(several)), np.uint8)
