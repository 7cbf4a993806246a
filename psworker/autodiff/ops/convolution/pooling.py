"""Max and average pooling of images, each beside its derivative, and of sequences, as images of width 1.

Windows are reduced along one axis at a time, in height + width steps instead of height * width.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from psworker.autodiff.ops.arrays.shapes import reshape
from psworker.autodiff.ops.convolution.windows import Axis, Padding, Pair, axes, check_images, pad, pair, single
from psworker.autodiff.tape import Result, float16_in_float32, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike


@op
@float16_in_float32
def max_pool2d(x: Array, /, size: Pair = 2, strides: Pair | None = None, padding: Padding = "VALID") -> Result:
    """The largest element of each window, per channel; the first among equals, row by row, gets the gradient.

    `x`: (batch, height, width, channels) -> (batch, rows, columns, channels). `size` and `strides` (by default the
    size): one integer or (height, width). "VALID" takes the windows inside the image, ceil((height - size + 1) /
    stride) rows; "SAME" takes ceil(height / stride), with padding that is never the largest.

    Raises ValueError when x has not four axes or no window fits, TypeError when x is not floating point.
    """
    rows, columns = _windows(x, size, strides, padding)
    padded = pad(x, rows, columns, -np.inf)
    across, from_column = _largest(padded, columns, 2)
    y, from_row = _largest(across, rows, 1)
    inside = np.s_[:, rows.inside, columns.inside]
    return y, (lambda g: _scattered(_scattered(g, rows, 1, from_row), columns, 2, from_column)[inside],)


def _largest(x: Array, windows: Axis, axis: int) -> tuple[Array, Array]:
    """The largest of each window along an axis, and its index 0 ... kernel - 1, the first among equals."""
    y = x[_at(axis, windows.taps(0))]
    which = np.zeros(y.shape, np.min_scalar_type(windows.kernel))
    for k in range(1, windows.kernel):
        candidate = x[_at(axis, windows.taps(k))]
        np.maximum(which, (candidate > y) * which.dtype.type(k), out=which)
        y = np.maximum(y, candidate)
    return y, which


@op
@float16_in_float32
def avg_pool2d(x: Array, /, size: Pair = 2, strides: Pair | None = None, padding: Padding = "VALID") -> Result:
    """The mean of each window, per channel, without the padding; arguments as in `max_pool2d`."""
    rows, columns = _windows(x, size, strides, padding)
    counts = np.outer(_counts(rows), _counts(columns)).astype(x.dtype)[:, :, np.newaxis]
    y = _window_sums(_window_sums(pad(x, rows, columns), columns, 2), rows, 1)
    y /= counts
    inside = np.s_[:, rows.inside, columns.inside]
    return y, (lambda g: _scattered(_scattered(g / counts, rows, 1), columns, 2)[inside],)


def max_pool1d(x: TensorLike, size: int = 2, strides: int | None = None, padding: Padding = "VALID") -> Tensor:
    """The largest element of each window of sequences, per channel.

    `x`: (batch, length, channels) -> (batch, steps, channels). `size` and `strides`, by default the size, are one
    integer each; padding, gradient and errors are those of `max_pool2d`.
    """
    return _of_sequences("max_pool1d", max_pool2d, x, size, strides, padding)


def avg_pool1d(x: TensorLike, size: int = 2, strides: int | None = None, padding: Padding = "VALID") -> Tensor:
    """The mean of each window of sequences, per channel, without the padding; arguments as in `max_pool1d`."""
    return _of_sequences("avg_pool1d", avg_pool2d, x, size, strides, padding)


def _of_sequences(
    name: str, pool: Callable[..., Tensor], x: TensorLike, size: int, strides: int | None, padding: Padding
) -> Tensor:
    shape = np.shape(x)
    if len(shape) != 3:
        raise ValueError(f"{name}: x must have the axes (batch, length, channels), but its shape is {shape}")
    size = single(f"{name}: size", size)
    steps = size if strides is None else single(f"{name}: strides", strides)
    batch, length, channels = shape
    y = pool(reshape(x, (batch, length, 1, channels)), (size, 1), (steps, 1), padding)
    return reshape(y, (batch, y.shape[1], channels))


def _counts(windows: Axis) -> Array:
    """The number of image elements in each window."""
    return _window_sums(np.pad(np.ones(windows.size, np.int64), (windows.before, windows.after)), windows, 0)


def _window_sums(x: Array, windows: Axis, axis: int) -> Array:
    """The sum of each window along an axis."""
    total = x[_at(axis, windows.taps(0))].copy()
    for k in range(1, windows.kernel):
        total += x[_at(axis, windows.taps(k))]
    return total


def _scattered(g: Array, windows: Axis, axis: int, which: Array | None = None) -> Array:
    """The g of each window added to its elements along an axis: to all of them, or to the one at index `which`."""
    tiled = windows.kernel == windows.stride and windows.windows * windows.stride == windows.padded
    make = np.empty if tiled else np.zeros  # tiles write each element once
    x_gradient = make((*g.shape[:axis], windows.padded, *g.shape[axis + 1 :]), g.dtype)
    for k in range(windows.kernel) if which is None else (*range(1, windows.kernel), 0):
        passed = g
        if which is not None and k > 0:  # the last, 0, gets what the others leave
            passed = (which == k).astype(g.dtype)
            passed *= g
        target = x_gradient[_at(axis, windows.taps(k))]
        if windows.kernel > windows.stride:
            np.add(target, passed, out=target)
        else:
            np.copyto(target, passed)
        if passed is not g:
            g = np.subtract(g, passed, out=passed)
    return x_gradient


def _at(axis: int, taps: slice) -> tuple[slice, ...]:
    """An index that slices one axis."""
    return (slice(None),) * axis + (taps,)


def _windows(x: Array, size: Pair, strides: Pair | None, padding: Padding) -> tuple[Axis, Axis]:
    check_images(x)
    kernel = pair("size", size)
    return axes(x.shape[1:3], kernel, kernel if strides is None else strides, padding)
