"""The op whose gradient is sparse: rows of a table, looked up by their numbers.

The table is an array, or a `RowSource`, of which only the rows that are looked up are ever here. Only numpy,
`IndexedSlices`, `pswire.tensors.sums`, the tape and the other ops may be imported here.
"""

from __future__ import annotations

import numpy as np

from pswire.tensors.sums import equal_groups, sum_groups
from pswire.tensors.values import IndexedSlices
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike, as_array

__all__ = ["embedding"]


class RowSource:
    """What a `Tensor` is as well whose value is kept elsewhere: it has a shape, a dtype and a gradient, but no array.

    Its `value` raises, so that no op but `embedding` takes it. That one asks for rows.
    """

    __slots__ = ()

    def fetch(self, indices: Array) -> Array:
        """The rows with these numbers, as they are now.

        Args:
            indices: (n,) int64, each in range, once, in rising order.

        Returns:
            (n, *shape[1:]) of the tensor's dtype.
        """
        raise NotImplementedError


def embedding(table: TensorLike, ids: TensorLike) -> Tensor:
    """The rows table[ids]: a table (rows, width) and integer ids of any shape -> (*ids.shape, width).

    The gradient is `IndexedSlices`, and the table's whole gradient is never made. It has one row an id; that of a
    `psworker.Table`, from which the distinct rows are fetched, has these, in rising order. Rows may have any number of
    axes. Raises TypeError when ids are not integers, IndexError when one is not in 0 ... rows - 1; then nothing was
    fetched.
    """
    if not (isinstance(table, Tensor) and isinstance(table, RowSource)):
        return _embedding(table, ids=ids)
    lookup = _Lookup(checked_ids(f"embedding: ids for {table}", ids, table.shape[0]), table.shape)
    rows = Tensor(table.fetch(lookup.indices))
    rows._node = table._node  # in the graph they are the table
    return _embedding(rows, ids=lookup)


class _Lookup:
    """Ids of rows of an array of `shape`, of which the distinct ones alone are fetched.

    Attributes:
        indices: the distinct ids, (n,), rising.
        places: of each id its place in `indices`; the shape of the ids.
    """

    def __init__(self, ids: Array, shape: tuple[int, ...]) -> None:
        flat = ids.reshape(-1)
        self._shape = shape
        self._order, self._begins = equal_groups(flat)
        self.indices = flat[self._order[self._begins]]
        places = np.empty(len(flat), np.intp)
        places[self._order] = np.cumsum(self._begins) - 1
        self.places = places.reshape(ids.shape)

    def gradient(self, g: Array) -> IndexedSlices:
        """The sums over equal ids of the gradient of the rows that were looked up, (*ids.shape, *shape[1:])."""
        rows = g.reshape(self.places.size, *self._shape[1:])
        sums = sum_groups(rows, self._order, self._begins)
        return IndexedSlices(sums, self.indices, self._shape, check_range=False)


@op
def _embedding(table: Array, /, *, ids: TensorLike | _Lookup) -> Result:
    """See `embedding`; for a `_Lookup`, `table` has the rows that it wants and no others."""
    if isinstance(ids, _Lookup):
        return np.take(table, ids.places, axis=0), (ids.gradient,)
    if np.ndim(table) == 0:
        raise ValueError("a table has at least one axis, of which ids choose")
    numbers = checked_ids("ids", ids, len(table))

    def gradient(g: Array) -> IndexedSlices:
        rows = g.reshape(numbers.size, *table.shape[1:])
        return IndexedSlices(rows, numbers.reshape(-1), table.shape, check_range=False)

    return np.take(table, numbers, axis=0), (gradient,)


def checked_ids(name: str, ids: TensorLike, rows: int) -> Array:
    """The ids as int64; TypeError unless they are integers, IndexError unless all are in 0 ... rows - 1.

    Where there are none, any dtype will do: an empty list is an array of floats to numpy.
    """
    ids = as_array(ids)
    if ids.size and ids.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, but they are {ids.dtype}")
    if ids.size and not 0 <= ids.min() <= ids.max() < rows:
        raise IndexError(f"{name} must be in 0 ... {rows - 1}, but they span {ids.min()} ... {ids.max()}")
    return ids.astype(np.int64, copy=False)
