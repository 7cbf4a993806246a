"""The op whose gradient is sparse: rows of a table, looked up by their numbers.

Only numpy, `IndexedSlices`, the tape and the other ops may be imported here.
"""

from __future__ import annotations

import numpy as np

from pswire.values import IndexedSlices
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, TensorLike, as_array

__all__ = ["embedding"]


@op
def embedding(table: Array, /, ids: TensorLike) -> Result:
    """The rows table[ids]: a table (rows, width) and integer ids of any shape -> (*ids.shape, width).

    The gradient is `IndexedSlices` with one row an id, and the table's whole gradient is never made. Rows may have any
    number of axes. Raises TypeError when ids are not integers, IndexError when one is not in 0 ... rows - 1.
    """
    ids = as_array(ids)
    if np.ndim(table) == 0:
        raise ValueError("a table has at least one axis, of which ids choose")
    if ids.dtype.kind not in "iu":
        raise TypeError(f"ids must be integers, but they are {ids.dtype}")
    rows = len(table)
    if ids.size and not 0 <= ids.min() <= ids.max() < rows:
        raise IndexError(f"ids must be in 0 ... {rows - 1}, but they span {ids.min()} ... {ids.max()}")

    def gradient(g: Array) -> IndexedSlices:
        indices = ids.reshape(-1).astype(np.int64, copy=False)
        return IndexedSlices(g.reshape(len(indices), *table.shape[1:]), indices, table.shape)

    return np.take(table, ids, axis=0), (gradient,)
