"""`Ragged`: rows of different length as one array of values and the positions where each row begins and ends.

There is no Python object per row: a column of millions of texts takes the memory of its values, or is a memory map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from pswire.errors import DatasetError
from pswire.tensors.values import Array

__all__ = ["Ragged"]


class Padded(NamedTuple):
    """Rows of one length: `values` (rows, width, ...), of which the first `lengths` (rows,) of each are given."""

    values: Array
    lengths: Array

    @property
    def mask(self) -> Array:
        """Booleans (rows, width), true where a value is given; `mask[:, None]` is one for `nn.MultiHeadAttention`."""
        mask: Array = np.arange(self.values.shape[1]) < self.lengths[:, np.newaxis]
        return mask


class Ragged:
    """Rows of different length: row i is `values[row_splits[i]:row_splits[i + 1]]`.

        tokens = ps.Ragged([[4, 1], [], [7, 2, 2]])
        tokens[2]                                           # array([7, 2, 2])
        values, lengths = tokens.padded(0)                  # (3, 3) and (3,), as nn.GRU and nn.LSTM take them
        ops.segment_mean(x[tokens.values], tokens.segment_ids, len(tokens))

    `rows`: arrays or lists of numbers (length, ...), of one dtype, whose shapes differ in the first axis only. An empty
    list fits to any. `from_splits` makes one of values that are in one array already.

    Raises DatasetError for no rows, or rows that differ in dtype or shape.
    """

    __slots__ = ("row_splits", "values")

    #: The values of all rows, (total, ...).
    values: Array
    #: Where each row begins, and the last one ends: (rows + 1,) int64, ascending from 0.
    row_splits: Array

    def __init__(self, rows: Iterable[npt.ArrayLike]) -> None:
        arrays = _rows(list(rows))
        self.values = np.concatenate(arrays)
        self.row_splits = _splits([len(row) for row in arrays])

    @classmethod
    def from_splits(cls, values: npt.ArrayLike, row_splits: npt.ArrayLike) -> Ragged:
        """Rows of `values` (total, ...), which is borrowed and may be a memory map, at `row_splits` (rows + 1,).

        Raises DatasetError unless `row_splits` are integers that ascend from 0 to `total`.
        """
        flat, splits = np.asarray(values), np.asarray(row_splits)
        fits = flat.ndim and splits.ndim == 1 and splits.size > 1 and splits.dtype.kind in "iu"
        if not fits or splits[0] or splits[-1] != len(flat) or (splits[1:] < splits[:-1]).any():
            raise DatasetError(
                "row_splits must be integers (rows + 1,) that ascend from 0 to the number of values, got "
                f"{splits.dtype} {splits} for values of shape {flat.shape}"
            )
        return cls._of(flat, splits.astype(np.int64, copy=False))

    @classmethod
    def concatenate(cls, parts: Iterable[Ragged]) -> Ragged:
        """The rows of all parts, in order. Raises DatasetError if they differ in dtype or the shape of a value."""
        several = list(parts)
        kinds = {(one.dtype, one.values.shape[1:]) for one in several}
        if len(kinds) != 1:
            raise DatasetError(f"ragged columns of one dtype and shape can be concatenated, got {several}")
        return cls._of(
            np.concatenate([one.values for one in several]), _splits(np.concatenate([one.lengths for one in several]))
        )

    @classmethod
    def _of(cls, values: Array, row_splits: Array) -> Ragged:
        made = cls.__new__(cls)
        made.values, made.row_splits = values, row_splits
        return made

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def lengths(self) -> Array:
        """The number of values of each row: (rows,) int64."""
        return np.diff(self.row_splits)

    @property
    def segment_ids(self) -> Array:
        """The row of each value, (total,) int64, as `ops.segment_sum` and its relatives take it."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @overload
    def __getitem__(self, key: int) -> Array: ...
    @overload
    def __getitem__(self, key: slice) -> Ragged: ...
    def __getitem__(self, key: int | slice) -> Array | Ragged:
        """A row, or a slice of the rows: views, unless the slice has a step."""
        if not isinstance(key, slice):
            number = range(len(self))[key]
            return self.values[self.row_splits[number] : self.row_splits[number + 1]]
        start, stop, step = key.indices(len(self))
        if step != 1:
            return self.take(np.arange(start, stop, step))
        splits = self.row_splits[start : max(start, stop) + 1]
        return Ragged._of(self.values[splits[0] : splits[-1]], splits - splits[0])

    def __iter__(self) -> Iterator[Array]:
        return (self[number] for number in range(len(self)))

    def take(self, indices: npt.ArrayLike) -> Ragged:
        """Copies of the rows at `indices`, (n,) integers, in that order; IndexError for one that is not there."""
        rows, count = np.asarray(indices), len(self)
        if rows.size and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= count):
            raise IndexError(f"{self!r} has rows 0 to {count - 1}, asked for {rows}")
        rows = rows.astype(np.int64, copy=False)
        starts = self.row_splits[rows]  # not `lengths`, which would read all rows
        positions, splits = positions_of(starts, self.row_splits[rows + 1] - starts)
        return Ragged._of(self.values[positions], splits)

    def padded(self, value: float = 0, length: int | None = None) -> Padded:
        """Rows of one length: the values, then `value`.

        Args:
            value: of the dtype, or cast to it.
            length: of all rows [the longest row's].

        Raises:
            DatasetError: a row is longer than `length`.
        """
        lengths = self.lengths
        longest = int(lengths.max(initial=0))
        width = longest if length is None else length
        if longest > width:
            raise DatasetError(
                f"{self!r} has a row of length {longest}: it cannot be padded to {width}; shorten it first"
            )
        values = np.full((len(self), width, *self.values.shape[1:]), value, self.dtype)
        padded = Padded(values, lengths)
        values[padded.mask] = self.values
        return padded

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows, {len(self.values)} x {self.dtype}{list(self.values.shape[1:])})"


#: A value for each example; or several for each, of different number.
Column: TypeAlias = Array | Ragged


def taken(column: Column, rows: Array) -> Column:
    """Copies of these rows of a column."""
    return column.take(rows) if isinstance(column, Ragged) else column.take(rows, axis=0)


def concatenated(columns: list[Any]) -> Column:
    """The rows of columns of one kind, dtype and shape, one column after the other."""
    return Ragged.concatenate(columns) if isinstance(columns[0], Ragged) else np.concatenate(columns)


def gathered(starts: Array, take: Callable[[int, Array], dict[str, Column]], rows: Array) -> dict[str, Column]:
    """The columns of rows of a table in parts, in the order of `rows`.

    `starts` (parts + 1,) says where each part begins, and the last one ends. `take` is called once for each part that
    has any of the rows, with its number and these rows, counted from its start; in the order in which `rows` needs
    them.
    """
    if len(starts) == 2:
        return take(0, rows)
    parts = np.searchsorted(starts, rows, side="right") - 1
    numbers, first = np.unique(parts, return_index=True)
    numbers = numbers[np.argsort(first)]
    places = [np.flatnonzero(parts == number) for number in numbers]
    pieces = [take(int(number), rows[place] - starts[number]) for number, place in zip(numbers, places, strict=True)]
    if len(pieces) == 1:
        return pieces[0]
    back = np.argsort(np.concatenate(places))
    return {name: taken(concatenated([piece[name] for piece in pieces]), back) for name in pieces[0]}


def null_message(nulls: int, count: int) -> str:
    """The message of the error for nulls, and what to do."""
    return (
        f"{nulls} of {count} values are null; fill them (fill_null, fillna), leave out their rows (drop_nulls, "
        "drop_null, dropna), or do not give the column"
    )


def positions_of(starts: Array, lengths: Array) -> tuple[Array, Array]:
    """The positions of all values of rows that begin at `starts`, one row after the other; and their row splits."""
    splits = _splits(lengths)
    return np.repeat(starts - splits[:-1], lengths) + np.arange(splits[-1]), splits


def _splits(lengths: npt.ArrayLike) -> Array:
    splits: Array = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return splits


def _rows(rows: list[npt.ArrayLike]) -> list[Array]:
    """The rows as arrays of one dtype and, but for the first axis, one shape. An empty list has neither."""
    arrays = []
    for number, row in enumerate(rows):
        try:
            array = np.asarray(row)
        except ValueError as error:
            raise DatasetError(f"row {number} is not an array ({error})") from error
        if not array.ndim or array.dtype.kind not in "biufc":
            raise DatasetError(
                f"row {number} is {array.dtype} of shape {array.shape}; give numbers, an array or list for each row"
            )
        arrays.append(array)
    if not arrays:
        raise DatasetError("there are no rows; give at least one")
    fixed = [number for number, row in enumerate(rows) if isinstance(row, np.ndarray) or arrays[number].size]
    if not fixed:
        return arrays
    first = arrays[fixed[0]]
    shape, dtype = first.shape[1:], first.dtype
    if not any(isinstance(rows[number], np.ndarray) for number in fixed):  # [1, 2] and [0.5] are a list of numbers
        dtype = np.result_type(*{arrays[number].dtype for number in fixed})
        arrays = [array.astype(dtype, copy=False) for array in arrays]
    for number in fixed:
        if arrays[number].dtype != dtype or arrays[number].shape[1:] != shape:
            raise DatasetError(
                f"row {number} is {arrays[number].dtype}{list(arrays[number].shape)} and row {fixed[0]} is "
                f"{first.dtype}{list(first.shape)}: rows have one dtype, and differ in the first axis only"
            )
    empty, given = np.empty((0, *shape), dtype), set(fixed)
    return [array if number in given else empty for number, array in enumerate(arrays)]
