"""Sorting and quantiles, beside their derivatives, and places in an order.

Each element gets the gradient of the place that it is sorted to. All sorts are stable, in both directions: equal
elements keep their order, so it also decides which of them gets which gradient. NaN counts as larger than inf: it is
last, and first when descending. `argmax`, `argmin`, `argsort`, `searchsorted` and `bincount` return numpy arrays and
have no derivative.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple
from numpy.typing import ArrayLike

from psworker.autodiff.ops.selection.indexing import checked_ids, integer_ids, take_along_axis
from psworker.autodiff.tape import Result, float16_in_float32, floating, op
from psworker.autodiff.tensor import Array, Axis, Tensor, TensorLike, as_array

__all__ = ["argmax", "argmin", "argsort", "bincount", "median", "quantile", "searchsorted", "sort", "top_k"]


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


@op
@float16_in_float32
def quantile(x: Array, /, q: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Result:
    """The value below which the fraction `q` of the elements over axes lie: the minimum for 0, the maximum for 1.

    Between two elements in order it is interpolated, as numpy's default method: element q * (n - 1) of n, from 0. Only
    these two get a gradient; equal ones keep their order. Several fractions, q of shape (k,), give a result
    with that axis in front. With NaN among the elements it is NaN.

    Raises ValueError when a fraction is not in 0 ... 1, or there are no elements.
    """
    x = floating(np.asarray(x))
    axes = tuple(range(x.ndim)) if axis is None else normalize_axis_tuple(axis, x.ndim)
    kept = tuple(place for place in range(x.ndim) if place not in axes)
    moved = x.transpose(kept + axes)
    rows = moved.reshape((*moved.shape[: len(kept)], math.prod(moved.shape[len(kept) :])))
    fractions = np.asarray(q, np.float64)
    if not np.all((fractions >= 0) & (fractions <= 1)):
        raise ValueError("q must be in 0 ... 1")
    if not rows.shape[-1]:
        raise ValueError("there are no elements to take a quantile of")
    order = np.argsort(rows, axis=-1, kind="stable")
    places, weights = _interpolated(fractions.reshape(-1), rows.shape[-1], x.dtype)
    values = _weighted(np.take_along_axis(rows, order, -1), places, weights)
    sizes = [1 if place in axes else size for place, size in enumerate(x.shape) if keepdims or place not in axes]

    def gradient(g: Array) -> Array:
        by_place = np.zeros(rows.shape, g.dtype)
        for n, part in enumerate(g.reshape((fractions.size, *rows.shape[:-1]))):
            for place, weight in zip(places[:, n], weights[:, n], strict=True):
                by_place[..., place] += part * weight
        total = np.empty_like(by_place)
        np.put_along_axis(total, order, by_place, -1)
        return total.reshape(moved.shape).transpose(np.argsort(kept + axes))

    return np.moveaxis(values, -1, 0).reshape((*fractions.shape, *sizes)), (gradient,)


def _interpolated(fractions: Array, size: int, dtype: np.dtype[np.floating]) -> tuple[Array, Array]:
    """For each fraction the two neighbouring places among `size` sorted elements, and their weights; both (2, k)."""
    position = fractions * (size - 1)
    low = np.floor(position).astype(np.intp)
    weight = (position - low).astype(dtype)
    return np.stack([low, np.minimum(low + 1, size - 1)]), np.stack([1 - weight, weight])


def _weighted(rows: Array, places: Array, weights: Array) -> Array:
    """The weighted sum of two elements of sorted rows; a weight of 0 leaves out infinity, NaN makes the row NaN."""
    low, high = rows[..., places[0]], rows[..., places[1]]
    with np.errstate(invalid="ignore"):
        between = low * weights[0] + high * weights[1]
    values = np.where((weights[1] == 0) | (low == high), low, between)
    return np.where(np.isnan(rows[..., -1:]), np.nan, values)


def median(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle element over axes, or the mean of the two middle ones; see `quantile`."""
    return quantile(x, 0.5, axis, keepdims)


def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Index of the largest element along an axis (the first among equals), or in the flattened array."""
    return np.asarray(np.argmax(as_array(x), axis=axis, keepdims=keepdims))


def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Index of the smallest element along an axis (the first among equals), or in the flattened array."""
    return np.asarray(np.argmin(as_array(x), axis=axis, keepdims=keepdims))


def searchsorted(a: TensorLike, values: TensorLike, side: Literal["left", "right"] = "left") -> Array:
    """For each value the number of elements of the ascending a, (n,), below it; with "right" also those equal to it.

    Indices in 0 ... n of the values' shape, at which they would be inserted in order: the bucket of each value.
    """
    return np.asarray(np.searchsorted(as_array(a), as_array(values), side))


def bincount(ids: TensorLike, length: int | None = None) -> Array:
    """Counts of the integers from 0 among ids of any shape, int64 (length,), by default up to the largest id.

    To add numbers by id, with a derivative, use `segment_sum`. Raises TypeError when the ids are not integers,
    ValueError when one is negative or not below `length`.
    """
    numbers = integer_ids("bincount: ids", ids).reshape(-1)
    if length is None:
        length = int(numbers.max(initial=-1)) + 1 if numbers.dtype.kind == "i" or numbers.size else 0
    return np.bincount(checked_ids("bincount: ids", numbers, length, ValueError), minlength=length)
