"""Sorting along an axis, beside its derivative: each element gets the gradient of the place that it is sorted to.

All sorts are stable, in both directions: equal elements keep their order, so it also decides which of them gets which
gradient. NaN counts as larger than inf: it is last, and first when descending. `argsort` returns a numpy array and has
no derivative.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from psworker.autodiff.ops.indexing import take_along_axis
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike, as_array

__all__ = ["argsort", "sort", "top_k"]


@op
def sort(x: Array, /, axis: int | None = -1, descending: bool = False) -> Result:
    """Sort x along an axis, or the flattened x if it is None; stable, ascending unless `descending`.

    Equal elements keep their order, and each gets the gradient of its own place.
    """
    x = np.asarray(x)
    elements, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    order = _order(elements, along, descending)

    def gradient(g: Array) -> Array:
        total = np.empty_like(g)
        np.put_along_axis(total, order, g, along)
        return total.reshape(x.shape)

    return np.take_along_axis(elements, order, along), (gradient,)


def argsort(x: TensorLike, axis: int | None = -1, descending: bool = False) -> Array:
    """Indices, int64, that sort x along an axis, or the flattened x if it is None; stable, as `sort`."""
    x = as_array(x)
    return _order(x.reshape(-1), 0, descending) if axis is None else _order(x, axis, descending)


def _order(x: Array, axis: int, descending: bool) -> Array:
    """The stable order along an axis. Reversed before and after, so that equal elements keep theirs when descending."""
    axis = normalize_axis_index(axis, x.ndim)
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    backward = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(backward, axis))


def top_k(x: TensorLike, k: int, axis: int = -1) -> tuple[Tensor, Array]:
    """The k largest elements along an axis, largest first, and their indices, int64, as `jax.lax.top_k`.

    x of shape (2, 5) and k=3 -> values (2, 3) and indices (2, 3). Of equal elements the first are taken, and only taken
    elements get a gradient. Raises ValueError when k is negative or above the size of the axis, TypeError when it is
    not an integer.
    """
    shape = as_array(x).shape
    axis = normalize_axis_index(axis, len(shape), "top_k")
    if not isinstance(k, (int, np.integer)):
        raise TypeError(f"top_k: k must be an integer, but it is {k!r}")
    if not 0 <= k <= shape[axis]:
        raise ValueError(f"top_k: k must be in 0 ... {shape[axis]}, the size of axis {axis} of x, but it is {k}")
    indices = argsort(x, axis, descending=True)[(slice(None),) * axis + (slice(k),)]
    return take_along_axis(x, indices, axis), indices
