"""Reductions over all axes (`axis=None`), one or a tuple of them, and running sums, each beside its derivative.

The reduced axes are removed, or kept with size 1 when `keepdims`.
"""

from __future__ import annotations

import numpy as np

from pswire.tensors.sums import add_over, sum_dtype
from psworker.autodiff.ops.dtypes import float16_in_float32, floating
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Axis

__all__ = ["cumsum", "logsumexp", "max", "mean", "min", "sum"]


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
def logsumexp(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """log(sum(exp(x))) over axes; finite for finite x.

    Shifted by the largest element before exp (Goodfellow, Bengio and Courville, Deep Learning, 2016, section 4.1).
    -inf contributes 0; over -inf alone the result is -inf, with zero gradient. NaN makes the result and all gradients
    of its group NaN; inf makes the result inf and its own gradient NaN.
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
        ordered = np.flip(values, axis) if backward else values
        sums = np.cumsum(ordered, axis, dtype)
        sums = sums if dtype is None else sums.astype(np.float32)
        return np.flip(sums, axis) if backward else sums

    return running(elements, reverse), (lambda g: running(g, not reverse).reshape(x.shape),)


def _broadcast(g: Array, shape: tuple[int, ...], axis: Axis, keepdims: bool) -> Array:
    """The gradient of a reduction broadcast, as a read-only view, to the shape of its operand."""
    if axis is not None and not keepdims:
        g = np.expand_dims(g, axis)
    view: Array = np.broadcast_to(g, shape)
    return view
