"""Pooling of images, the largest or the mean of each window, beside its derivative.

A window is reduced along its rows first and then across them, so that it costs height + width steps instead of
height * width. Only numpy, the tape, the windows and
`precision.py` may be imported here.
"""

from __future__ import annotations

import numpy as np

from psworker.autodiff.ops.precision import float16_in_float32
from psworker.autodiff.ops.windows import Axis, Padding, Pair, axes, pad, pair
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array

__all__ = ["avg_pool2d", "max_pool2d"]


@op
@float16_in_float32
def max_pool2d(x: Array, /, size: Pair = 2, strides: Pair | None = None, padding: Padding = "VALID") -> Result:
    """The largest element of each window, channel by channel.

    `x`: (batch, height, width, channels). `size` and `strides` (the size, unless given): one integer or two (height,
    width). The result is (batch, rows, columns, channels): "VALID" takes the windows inside the image, ceil((height -
    size + 1) / stride) rows; "SAME" takes ceil(height / stride) and pads at the edges, mostly the far ones, with what
    is never the largest. Of equal elements the first, row by row, gets the gradient.

    Raises ValueError when x has not four axes or a window does not fit, TypeError when x is not floating point.
    """
    rows, columns = _checked(x, size, strides, padding)
    padded = pad(x, rows, columns, -np.inf)
    across, from_column = _largest(padded, columns, 2)
    y, from_row = _largest(across, rows, 1)

    def gradient(g: Array) -> Array:
        g = _to_largest(g, from_row, rows, 1)
        return _to_largest(g, from_column, columns, 2)[:, rows.inside, columns.inside]

    return y, (gradient,)


def _largest(x: Array, windows: Axis, axis: int) -> tuple[Array, Array]:
    """The largest of each window along one axis, and which it was: 0 ... kernel - 1, the first of equals."""
    y = x[_at(axis, windows.taps(0))]
    which = np.zeros(y.shape, np.min_scalar_type(windows.kernel))
    for k in range(1, windows.kernel):
        candidate = x[_at(axis, windows.taps(k))]
        np.maximum(which, (candidate > y) * which.dtype.type(k), out=which)
        y = np.maximum(y, candidate)
    return y, which


def _to_largest(g: Array, which: Array, windows: Axis, axis: int) -> Array:
    """The gradient of what `_largest` was given."""
    x_gradient = _room(g, windows, axis)
    for k in range(1, windows.kernel):
        passed = (which == k).astype(g.dtype)
        passed *= g
        _give(x_gradient, windows, axis, k, passed)
        g = np.subtract(g, passed, out=passed)
    _give(x_gradient, windows, axis, 0, g)
    return x_gradient


@op
@float16_in_float32
def avg_pool2d(x: Array, /, size: Pair = 2, strides: Pair | None = None, padding: Padding = "VALID") -> Result:
    """The mean of each window, channel by channel; as `max_pool2d`, and what lies outside the image does not count."""
    rows, columns = _checked(x, size, strides, padding)
    counts = np.outer(_counts(rows), _counts(columns)).astype(x.dtype)[:, :, np.newaxis]
    y = _window_sums(_window_sums(pad(x, rows, columns), columns, 2), rows, 1)
    y /= counts

    def gradient(g: Array) -> Array:
        g = _to_all(g / counts, rows, 1)
        return _to_all(g, columns, 2)[:, rows.inside, columns.inside]

    return y, (gradient,)


def _counts(windows: Axis) -> Array:
    """How many elements of the image each window holds."""
    ones = np.zeros(windows.padded, np.int64)
    ones[windows.inside] = 1
    return _window_sums(ones, windows, 0)


def _window_sums(x: Array, windows: Axis, axis: int) -> Array:
    """The sum of each window along one axis."""
    total = x[_at(axis, windows.taps(0))].copy()
    for k in range(1, windows.kernel):
        total += x[_at(axis, windows.taps(k))]
    return total


def _to_all(g: Array, windows: Axis, axis: int) -> Array:
    """The gradient of what `_window_sums` was given."""
    x_gradient = _room(g, windows, axis)
    for k in range(windows.kernel):
        _give(x_gradient, windows, axis, k, g)
    return x_gradient


def _at(axis: int, taps: slice) -> tuple[slice, ...]:
    """An index that takes a slice of one axis."""
    return (slice(None),) * axis + (taps,)


def _give(x_gradient: Array, windows: Axis, axis: int, k: int, g: Array) -> None:
    """Adds g to the k-th elements of all windows; where these do not overlap, nothing is there to add to."""
    target = x_gradient[_at(axis, windows.taps(k))]
    if windows.kernel > windows.stride:
        np.add(target, g, out=target)
    else:
        np.copyto(target, g)


def _room(g: Array, windows: Axis, axis: int) -> Array:
    """An array of the padded length along one axis and of g's along the others, zero where no window lies."""
    tiled = windows.kernel == windows.stride and windows.windows * windows.stride == windows.padded
    make = np.empty if tiled else np.zeros
    return make((*g.shape[:axis], windows.padded, *g.shape[axis + 1 :]), g.dtype)


def _checked(x: Array, size: Pair, strides: Pair | None, padding: Padding) -> tuple[Axis, Axis]:
    """The geometry, or the error that says what does not fit."""
    if np.ndim(x) != 4:
        raise ValueError(f"x must have the axes (batch, height, width, channels), but its shape is {np.shape(x)}")
    if x.dtype.kind != "f":
        raise TypeError(f"x must be floating point, but its dtype is {x.dtype}")
    kernel = pair("size", size)
    return axes(x.shape[1:3], kernel, kernel if strides is None else strides, padding)
