"""Euclidean norms of gradients, updates and values, in float64, taken while a replayed shard makes its updates."""

import math
from collections.abc import Iterable

import numpy as np

from psserver.core.variables.variable import Variable
from pswire.messages import Gradient
from pswire.tensors.compression import Packed, unpacked
from pswire.tensors.values import Array, IndexedSlices

#: Elements that are converted to float64 at a time.
PIECE = 1 << 16


def norm(array: Array) -> float:
    """The root of the sum of squares; exact to some 1e-15, and without overflow. NaN or infinite if an element is."""
    flat = array.reshape(-1)
    if 0 < flat.size <= PIECE:
        return _piece_norm(flat)
    pieces = [_piece_norm(flat[start : start + PIECE]) for start in range(0, flat.size, PIECE)]
    return math.hypot(*pieces)


def _piece_norm(flat: Array) -> float:
    if flat.dtype == np.float64:
        largest = float(np.abs(flat).max())
        if not 1e-100 < largest < 1e100:  # squares may overflow or vanish
            return largest * _piece_norm(flat / largest) if 0 < largest < math.inf else largest
    else:
        flat = flat.astype(np.float64)
    return math.sqrt(np.vdot(flat, flat))


def gradient_norm(gradient: Gradient) -> float:
    """The norm of a pushed gradient; rows with equal indices are added up first."""
    array: Array | IndexedSlices | Packed = gradient.array
    if not isinstance(array, np.ndarray):
        array = unpacked(array)
    return norm(array.summed().values if isinstance(array, IndexedSlices) else array)


class VariableNorms:
    """Norms of a variable around one update of it: of the value before and after, and of their difference."""

    __slots__ = ("_before", "_rows", "_value", "after", "before", "update")

    def __init__(self, variable: Variable, gradients: Iterable[Gradient], *, of_value: bool) -> None:
        """Keeps what the update by these gradients will change: the rows of which they are, or all elements.

        Without `of_value`, `before` and `after` are left out.
        """
        self._value, self._rows = variable.value, _rows(gradients)
        self._before = self._value.copy() if self._rows is None else self._value[self._rows]
        self.before = norm(self._value) if of_value else None
        self.after: float | None = None
        self.update = 0.0

    def done(self) -> None:
        """Take the norms after the update."""
        now = self._value if self._rows is None else self._value[self._rows]
        with np.errstate(all="ignore"):
            self.update = norm(np.subtract(now, self._before, dtype=np.promote_types(now.dtype, np.float64)))
        if self.before is not None:
            self.after = norm(self._value)


def _rows(gradients: Iterable[Gradient]) -> Array | None:
    """The rows that an update by these gradients changes; None: all."""
    found = []
    for gradient in gradients:
        if not isinstance(gradient.array, IndexedSlices):
            return None
        found.append(gradient.array.indices)
    return np.unique(np.concatenate(found))
