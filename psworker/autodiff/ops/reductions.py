"""Reductions and running sums and products, each beside its derivative.

Reductions are over all axes (`axis=None`), one or a tuple of them, which are removed, or kept with size 1 when
`keepdims`. `all`, `any` and `count_nonzero` return numpy arrays and have no derivative.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from pswire.tensors.sums import add_over, sum_dtype
from psworker.autodiff.ops.arrays.shapes import reshape
from psworker.autodiff.tape import Result, float16_in_float32, floating, op
from psworker.autodiff.tensor import Array, Axis, Tensor, TensorLike, as_array

__all__ = ["all", "any", "average", "count_nonzero", "cumprod", "cumsum", "logsumexp", "max", "mean", "min", "nanmean"]
__all__ += ["nansum", "norm", "prod", "std", "sum", "var"]


@op
@float16_in_float32
def sum(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The sum over axes: (2, 3) over axis 0 -> (3,)."""
    shape = np.shape(x)
    return add_over(np.asarray(x), axis, keepdims), (lambda g: _broadcast(g, shape, axis, keepdims),)


@op
@float16_in_float32
def mean(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The mean over axes: (2, 3) over axis 0 -> (3,). Raises ValueError when it is over no elements."""
    shape = np.shape(x)
    total = add_over(np.asarray(x), axis, keepdims)
    if np.size(total) == 0:
        return total, (lambda g: np.zeros(shape, g.dtype),)
    count = np.size(x) // np.size(total)
    if count == 0:
        raise ValueError("there are no elements to take the mean of")
    return total / count, (lambda g: _broadcast(g / count, shape, axis, keepdims),)


@op
@float16_in_float32
def nansum(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The sum over axes of the elements that are not NaN; the others get no gradient. 0 if all are NaN."""
    x = np.asarray(x)
    return add_over(np.where(np.isnan(x), 0, x), axis, keepdims), (
        lambda g: np.where(np.isnan(x), 0, _broadcast(g, x.shape, axis, keepdims)),
    )


@op
@float16_in_float32
def nanmean(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The mean over axes of the elements that are not NaN; the others get no gradient. NaN if all are NaN."""
    x = floating(np.asarray(x))
    known = np.logical_not(np.isnan(x))
    count = np.sum(known, axis=axis, keepdims=keepdims).astype(x.dtype)
    count = np.where(count == 0, np.nan, count).astype(x.dtype)
    return add_over(np.where(known, x, 0), axis, keepdims) / count, (
        lambda g: np.where(known, _broadcast(g / count, x.shape, axis, keepdims), 0),
    )


def average(x: TensorLike, axis: Axis = None, weights: TensorLike | None = None, keepdims: bool = False) -> Tensor:
    """The weighted mean over axes, sum(weights * x) / sum(weights), with derivatives by both; `mean` without weights.

    The weights have the shape of x, or broadcast to it; for one axis they may be of shape (n,), one for each place
    along it. Where they add up to 0 the result is NaN, and numpy warns.
    """
    if weights is None:
        return mean(x, axis, keepdims)
    shape, sizes = np.shape(as_array(x)), np.shape(as_array(weights))
    if isinstance(axis, int) and len(sizes) == 1 < len(shape):
        column = (-1,) + (1,) * (len(shape) - 1 - normalize_axis_index(axis, len(shape), "average"))
        weights = reshape(weights, column) if isinstance(weights, Tensor) else np.reshape(weights, column)
    return _average(x, weights, axis, keepdims)


@op
@float16_in_float32
def _average(x: Array, weights: Array, /, axis: Axis, keepdims: bool) -> Result:
    x = floating(np.asarray(x))
    weights = np.broadcast_to(weights, x.shape).astype(x.dtype, copy=False)
    whole = np.asarray(add_over(weights, axis, keepdims=True))
    shares = weights / whole
    y = np.asarray(add_over(x * shares, axis, keepdims=True))
    return y if keepdims else np.squeeze(y, axis), (
        lambda g: shares * _broadcast(g, x.shape, axis, keepdims),
        lambda g: (x - y) / whole * _broadcast(g, x.shape, axis, keepdims),
    )


@op
def max(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The largest element over axes; equal ones share the gradient equally."""
    return _extreme(x, np.max(x, axis=axis, keepdims=True), axis, keepdims)


@op
def min(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The smallest element over axes; equal ones share the gradient equally."""
    return _extreme(x, np.min(x, axis=axis, keepdims=True), axis, keepdims)


def _extreme(x: Array, extreme: Array, axis: Axis, keepdims: bool) -> Result:
    def gradient(g: Array) -> Array:
        equal = x == extreme
        dtype = sum_dtype(g.dtype)
        share: Array = equal / np.sum(equal, axis=axis, keepdims=True).astype(dtype)  # counted in integers
        return share * _broadcast(g.astype(dtype, copy=False), x.shape, axis, keepdims)

    return extreme if keepdims else np.squeeze(extreme, axis), (gradient,)


@op
@float16_in_float32
def prod(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The product over axes: (2, 3) over axis 0 -> (3,); over no elements 1.

    The derivative by an element is the product of the others, computed without division: it is exact beside zeros too.
    """
    x = np.asarray(x)
    axes = tuple(range(x.ndim)) if axis is None else normalize_axis_tuple(axis, x.ndim)
    kept = tuple(place for place in range(x.ndim) if place not in axes)

    def gradient(g: Array) -> Array:
        moved = x.transpose(kept + axes)
        groups = moved.reshape(*moved.shape[: len(kept)], math.prod(moved.shape[len(kept) :]))
        others = _products_before(groups) * _products_before(groups[..., ::-1])[..., ::-1]
        by_place: Array = others.reshape(moved.shape).transpose(np.argsort(kept + axes))
        return by_place * _broadcast(g, x.shape, axis, keepdims)

    return np.prod(x, axis=axis, keepdims=keepdims), (gradient,)


def _products_before(x: Array) -> Array:
    """For each element the product of those before it along the last axis; 1 for the first."""
    shifted = np.ones_like(x)
    np.cumprod(x[..., :-1], axis=-1, out=shifted[..., 1:])
    return shifted


@op
@float16_in_float32
def var(x: Array, /, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Result:
    """The variance over axes, sum((x - mean)^2) / (n - ddof) of n elements; ddof=1 for the unbiased estimate.

    Raises ValueError when n is not above ddof.
    """
    x = floating(np.asarray(x))
    deviations, y, divisor = _variance(x, axis, ddof)

    def gradient(g: Array) -> Array:
        return deviations * _broadcast(g * (2 / divisor), x.shape, axis, keepdims)

    return y if keepdims else np.squeeze(y, axis), (gradient,)


@op
@float16_in_float32
def std(x: Array, /, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Result:
    """The standard deviation over axes, the square root of `var`; ValueError when n is not above ddof.

    At 0, where all elements are equal, it has a kink, and the derivative is taken as 0.
    """
    x = floating(np.asarray(x))
    deviations, variance, divisor = _variance(x, axis, ddof)
    y = np.sqrt(variance)

    def gradient(g: Array) -> Array:
        directions = deviations / np.where(y == 0, 1, y * divisor)
        return directions * _broadcast(g, x.shape, axis, keepdims)

    return y if keepdims else np.squeeze(y, axis), (gradient,)


def _variance(x: Array, axis: Axis, ddof: int) -> tuple[Array, Array, int]:
    """Deviations from the mean, the variance with the reduced axes kept, and n - ddof; a Python scalar is an array."""
    total = np.asarray(add_over(x, axis, keepdims=True))
    count = x.size // total.size if total.size else ddof + 1  # without groups, nothing is divided
    if count <= ddof:
        raise ValueError(f"there are {count} elements to take the variance of, and ddof is {ddof}: it must be below")
    deviations = x - total / count if total.size else x
    return deviations, np.asarray(add_over(np.square(deviations), axis, keepdims=True)) / (count - ddof), count - ddof


@op
@float16_in_float32
def norm(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The Euclidean norm over axes, sqrt(sum(x^2)); over two axes, the Frobenius norm; over no elements 0.

    Scaled by the largest element, so squares do not overflow. At 0 it has a kink, and the derivative is taken as 0; by
    an infinite element it is NaN, and numpy warns.
    """
    x = floating(np.asarray(x))
    largest = np.max(np.abs(x), axis=axis, keepdims=True, initial=0)
    scale = np.where((largest > 0) & (largest < np.inf), largest, 1).astype(x.dtype, copy=False)
    y = np.asarray(np.sqrt(add_over(np.square(x / scale), axis, keepdims=True))) * scale

    def gradient(g: Array) -> Array:
        return x / np.where(y == 0, 1, y) * _broadcast(g, x.shape, axis, keepdims)

    return y if keepdims else np.squeeze(y, axis), (gradient,)


def all(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """True where all elements over axes are true (not 0), as booleans; over no elements True."""
    return np.asarray(np.all(as_array(x), axis=axis, keepdims=keepdims))


def any(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """True where any element over axes is true (not 0), as booleans; over no elements False."""
    return np.asarray(np.any(as_array(x), axis=axis, keepdims=keepdims))


def count_nonzero(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The number of elements over axes that are true (not 0), int64."""
    return np.asarray(np.count_nonzero(as_array(x), axis=axis, keepdims=keepdims))


@op
@float16_in_float32
def logsumexp(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """log(sum(exp(x))) over axes; finite for finite x.

    Shifted by the largest element before exp (Goodfellow, Bengio and Courville, Deep Learning, 2016, section 4.1).
    Over -inf alone the result is -inf, with zero gradient. NaN makes the result and all gradients of its group NaN; inf
    makes the result inf and its own gradient NaN.
    """
    x = floating(x)
    largest = np.nan_to_num(np.max(x, axis=axis, keepdims=True))  # finite, as inf - inf is nan
    with np.errstate(divide="ignore"):  # log(0) is -inf, as intended
        y = np.log(add_over(np.exp(x - largest), axis, keepdims=True)) + largest
    shift = np.where(y == -np.inf, 0, y)

    def gradient(g: Array) -> Array:
        with np.errstate(invalid="ignore"):  # inf - inf
            share: Array = np.exp(x - shift)
        return _broadcast(g, x.shape, axis, keepdims) * share

    return y if keepdims else np.squeeze(y, axis), (gradient,)


@op
@float16_in_float32
def cumsum(x: Array, /, axis: int | None = None, reverse: bool = False) -> Result:
    """The inclusive running sum along an axis, by default over the flattened x; with `reverse`, from the end."""
    x = np.asarray(x)
    elements = x.reshape(-1) if axis is None else x

    def running(values: Array, backward: bool) -> Array:
        dtype = np.float64 if values.dtype == np.float32 else None  # sequential, so roundings accumulate
        sums = np.cumsum(np.flip(values, axis) if backward else values, axis, dtype)
        sums = sums if dtype is None else sums.astype(np.float32)
        return np.flip(sums, axis) if backward else sums

    return running(elements, reverse), (lambda g: running(g, not reverse).reshape(x.shape),)


@op
@float16_in_float32
def cumprod(x: Array, /, axis: int | None = None) -> Result:
    """The inclusive running product along an axis, by default over the flattened x.

    The derivative is computed without division, in one step per element along the axis: it is exact beside zeros too.
    """
    x = np.asarray(x)
    rows = x.reshape(1, -1) if axis is None else np.moveaxis(x, axis, -1)

    def gradient(g: Array) -> Array:
        total = np.array(g.reshape(rows.shape) if axis is None else np.moveaxis(g, axis, -1), order="C")
        for place in range(rows.shape[-1] - 2, -1, -1):  # the sum over later products, without those before the place
            total[..., place] += total[..., place + 1] * rows[..., place + 1]
        total *= _products_before(rows)
        return total.reshape(x.shape) if axis is None else np.moveaxis(total, -1, axis)

    return np.cumprod(x, axis), (gradient,)


def _broadcast(g: Array, shape: tuple[int, ...], axis: Axis, keepdims: bool) -> Array:
    """The gradient of a reduction broadcast, as a read-only view, to the shape of its operand."""
    if axis is not None and not keepdims:
        g = np.expand_dims(g, axis)
    view: Array = np.broadcast_to(g, shape)
    return view
