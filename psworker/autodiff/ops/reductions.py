"""Reductions, over all axes, one or a tuple of them, and running sums, each beside its derivative.

Reductions of float32 are float32. Only numpy and the tape may be imported here.
"""

from __future__ import annotations

import numpy as np

from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Axis

__all__ = ["cumsum", "logsumexp", "max", "mean", "min", "sum"]


@op
def sum(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The sum over all axes, over one or over a tuple of them; float32 in, float32 out."""
    return np.sum(x, axis=axis, keepdims=keepdims), (lambda g: _spread(g, x.shape, axis, keepdims),)


@op
def mean(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The mean over all axes, over one or over a tuple of them. ValueError when it would be the mean of nothing."""
    total = np.sum(x, axis=axis, keepdims=keepdims)
    if np.size(total) == 0:
        return total, (lambda g: np.zeros(x.shape, g.dtype),)
    count = np.size(x) // np.size(total)
    if count == 0:
        raise ValueError("there are no elements to take the mean of")
    return total / count, (lambda g: _spread(g / count, x.shape, axis, keepdims),)


@op
def max(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The largest element over all axes, over one or over a tuple of them; equal ones share the gradient equally."""
    return _extreme(x, np.max(x, axis=axis, keepdims=True), axis, keepdims)


@op
def min(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The smallest element over all axes, over one or over a tuple of them; equal ones share the gradient equally."""
    return _extreme(x, np.min(x, axis=axis, keepdims=True), axis, keepdims)


def _extreme(x: Array, extreme: Array, axis: Axis, keepdims: bool) -> Result:
    def gradient(g: Array) -> Array:
        equal = x == extreme
        share: Array = equal / np.sum(equal, axis=axis, keepdims=True, dtype=x.dtype)
        return share * _spread(g, x.shape, axis, keepdims)

    return extreme if keepdims else np.squeeze(extreme, axis), (gradient,)


@op
def logsumexp(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """log(sum(exp(x))) over all axes, over one or over a tuple of them; finite for every finite x.

    Shifted by the largest element before exp (Goodfellow, Bengio and Courville, Deep Learning, 2016, section 4.1). An
    x of -inf adds nothing; the result over such alone is -inf, and passes no gradient.
    """
    largest = np.nan_to_num(np.max(x, axis=axis, keepdims=True))  # finite, as inf - inf is nan
    with np.errstate(divide="ignore"):  # log(0) is -inf, and meant
        y = np.log(np.sum(np.exp(x - largest), axis=axis, keepdims=True)) + largest
    finite = np.nan_to_num(y)
    return y if keepdims else np.squeeze(y, axis), (lambda g: _spread(g, x.shape, axis, keepdims) * np.exp(x - finite),)


@op
def cumsum(x: Array, /, axis: int | None = None, reverse: bool = False) -> Result:
    """The running sum along one axis, of the shape of x, or by default, as in numpy, over the flattened x.

    Each element of the result is the sum of those up to it, itself included; with `reverse`, of those from it on.
    """
    x = np.asarray(x)
    elements = x.reshape(-1) if axis is None else x

    def running(values: Array, backward: bool) -> Array:
        return np.flip(np.cumsum(np.flip(values, axis), axis), axis) if backward else np.cumsum(values, axis)

    return running(elements, reverse), (lambda g: running(g, not reverse).reshape(x.shape),)


def _spread(g: Array, shape: tuple[int, ...], axis: Axis, keepdims: bool) -> Array:
    """The gradient of a reduction, repeated (as a read-only view) over the axes that were reduced."""
    if axis is not None and not keepdims:
        g = np.expand_dims(g, axis)
    view: Array = np.broadcast_to(g, shape)
    return view
