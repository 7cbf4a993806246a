"""Embedding lookup, the op with a sparse gradient: rows of an array, or of a `RowSource` that fetches them."""

from __future__ import annotations

import numpy as np

from pswire.tensors.sums import equal_groups, sum_groups
from pswire.tensors.values import IndexedSlices
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike, as_array


class RowSource:
    """Mixin of a `Tensor` whose rows are remote: it has a shape, a dtype and a gradient, but no array.

    Its `value` raises; only `embedding` accepts it, and fetches rows.
    """

    __slots__ = ()

    def fetch(self, indices: Array) -> Array:
        """Current rows (n, *shape[1:]) at `indices`, (n,) int64, in range, distinct and ascending."""
        raise NotImplementedError


def embedding(table: TensorLike, ids: TensorLike) -> Tensor:
    """Rows table[ids]: a table (rows, ...) and integer ids of any shape -> (*ids.shape, ...).

    The gradient is `IndexedSlices` with one row per id; for a `psworker.Table`, from which distinct rows are fetched,
    with one row per distinct id, ascending. Raises TypeError when ids are not integers, IndexError when one is not in
    0 ... rows - 1, before anything is fetched.
    """
    if not (isinstance(table, Tensor) and isinstance(table, RowSource)):
        return _embedding(table, ids=ids)
    lookup = _Lookup(checked_ids(f"embedding: ids for {table}", ids, table.shape[0]), table.shape)
    rows = Tensor(table.fetch(lookup.indices))
    rows._node = table._node  # in the graph, the rows are the table
    return _embedding(rows, ids=lookup)


class _Lookup:
    """Lookup of distinct rows of a table of `shape`.

    Attributes:
        indices: distinct ids, (n,), ascending.
        places: position of each id in `indices`; the shape of the ids.
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
        """Sums over equal ids of a gradient (*ids.shape, *shape[1:])."""
        rows = g.reshape(self.places.size, *self._shape[1:])
        sums = sum_groups(rows, self._order, self._begins)
        return IndexedSlices(sums, self.indices, self._shape, check_range=False)


@op
def _embedding(table: Array, /, *, ids: TensorLike | _Lookup) -> Result:
    """See `embedding`; for a `_Lookup`, `table` holds its distinct rows only."""
    if isinstance(ids, _Lookup):
        return np.take(table, ids.places, axis=0), (ids.gradient,)
    if np.ndim(table) == 0:
        raise ValueError("a table must have at least one axis")
    numbers = checked_ids("ids", ids, len(table))

    def gradient(g: Array) -> IndexedSlices:
        rows = g.reshape(numbers.size, *table.shape[1:])
        return IndexedSlices(rows, numbers.reshape(-1), table.shape, check_range=False)

    return np.take(table, numbers, axis=0), (gradient,)


def checked_ids(name: str, ids: TensorLike, rows: int) -> Array:
    """The ids as int64; TypeError unless they are integers, IndexError unless all are in 0 ... rows - 1.

    An empty array may have any dtype, as numpy makes floats of an empty list.
    """
    ids = as_array(ids)
    if ids.size and ids.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, but they are {ids.dtype}")
    if ids.size and not 0 <= ids.min() <= ids.max() < rows:
        raise IndexError(f"{name} must be in 0 ... {rows - 1}, but they span {ids.min()} ... {ids.max()}")
    return ids.astype(np.int64, copy=False)
