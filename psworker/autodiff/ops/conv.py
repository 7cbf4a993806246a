"""Convolution of images, beside its derivatives: matrix products over blocks of images that stay in cache.

Where minimal filtering takes less time, `winograd.py` does the work. What takes the time, and what was tried to make
it less, is in docs/performance.md. Only numpy, `pswire.sums`, the tape, the windows, `winograd.py`, `precision.py`
and relu's derivative may be imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pswire.sums import add_over
from psworker.autodiff.ops import winograd
from psworker.autodiff.ops.nn import relu_vjp
from psworker.autodiff.ops.precision import float16_in_float32
from psworker.autodiff.ops.windows import Axis, Padding, Pair, axes, blocks, pad
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike

__all__ = ["conv2d"]

BLOCK_BYTES = 2 << 20  # of columns at a time: measured, see docs/performance.md


def conv2d(
    x: TensorLike,
    filters: TensorLike,
    bias: TensorLike | None = None,
    strides: Pair = 1,
    padding: Padding = "SAME",
    dilations: Pair = 1,
    activation: Literal["relu"] | None = None,
) -> Tensor:
    """y[n, i, j, o] = sum over u, v, c of filters[u, v, c, o] * x[n, i*s + u*d, j*s + v*d, c]; stride s, dilation d.

    `x`: (batch, height, width, channels); `filters`: (height, width, channels, out), any size; `bias`: (out,), added to
    each y. `strides` and `dilations`: one integer or two (height, width). The result is (batch, rows, columns, out),
    with ceil(size / stride) rows and columns for "SAME", which pads x with zeros (what is odd of them at the end, as
    TensorFlow does), and ceil((size - (kernel - 1) * dilation) / stride) for "VALID", which does not. It is the
    cross-correlation that the field calls convolution (Goodfellow, Bengio and Courville, Deep Learning, 2016,
    equation 9.6). `activation="relu"` gives `relu` of all that, for less time and memory than a relu after it.

    In float32 minimal filtering is used where that is faster (docs/performance.md says where). Its errors are up to
    6e-6 of the largest element of the result, or of a gradient, instead of 5e-7; in float64 it is never used.

    Raises ValueError when shapes do not fit or an option is unknown, TypeError when something is not floating point.
    """
    y = _conv2d(x, filters, bias, strides, padding, dilations, activation)  # type: ignore[arg-type]
    return y if activation is None else ACTIVATIONS[activation].derivative(y)


@op
@float16_in_float32
def _conv2d(
    x: Array,
    filters: Array,
    bias: Array | None = None,
    /,
    strides: Pair = 1,
    padding: Padding = "SAME",
    dilations: Pair = 1,
    activation: str | None = None,
) -> Result:
    """The value of `conv2d`, activated, and the derivatives of what was activated."""
    x, filters = np.asarray(x), np.asarray(filters)
    _check(x, filters, bias, activation)
    rows, columns = axes(x.shape[1:3], filters.shape[:2], strides, padding, dilations)
    dtype = np.result_type(*(a for a in (x, filters, bias) if a is not None))
    x, filters = x.astype(dtype, copy=False), np.ascontiguousarray(filters, dtype)
    channels, out = filters.shape[2:]

    def finish(part: Array) -> None:
        if bias is not None:
            np.add(part, bias, out=part)
        if activation is not None:
            ACTIVATIONS[activation].apply(part)

    def bias_gradient(g: Array) -> Array:
        sums: Array = add_over(_flat(g), 0)
        return sums

    if winograd.pays(len(x), channels, out, rows, columns, dtype):
        return winograd.convolve(x, filters, rows, columns, finish), (
            lambda g: winograd.images_gradient(g, filters, rows, columns),
            lambda g: winograd.filters_gradient(x, g, rows, columns),
            bias_gradient,
        )

    windows = _windows(pad(x, rows, columns), rows, columns)
    matrix = filters.reshape(math.prod(filters.shape[:3]), out)
    y = np.empty((*windows.shape[:3], out), dtype)
    for block in _blocks(windows):
        part = y[block]
        np.matmul(_gather(windows[block]), matrix, out=_flat(part))
        finish(part)

    def x_gradient(g: Array) -> Array:
        return _images_gradient(g, filters, rows, columns)

    def filters_gradient(g: Array) -> Array:
        total = np.zeros_like(matrix)
        part = np.empty_like(matrix)
        for block in _blocks(windows):
            np.matmul(_gather(windows[block]).T, _flat(g[block]), out=part)
            np.add(total, part, out=total)
        return total.reshape(filters.shape)

    return y, (x_gradient, filters_gradient, bias_gradient)


def _windows(images: Array, rows: Axis, columns: Axis) -> Array:
    """All windows of padded images, as a view (batch, rows, columns, kernel height, kernel width, channels)."""
    batch, row, column, channel = images.strides
    return as_strided(
        images,
        (len(images), rows.windows, columns.windows, rows.kernel, columns.kernel, images.shape[3]),
        (batch, row * rows.stride, column * columns.stride, row * rows.dilation, column * columns.dilation, channel),
        writeable=False,
    )


def _blocks(windows: Array) -> Iterator[tuple[slice, slice]]:
    """Blocks of the first two axes that are small enough to be gathered."""
    images, rows, *window = windows.shape
    return blocks(images, rows, math.prod(window) * windows.itemsize, BLOCK_BYTES)


def _flat(x: Array) -> Array:
    """(..., channels) as a matrix."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _gather(windows: Array) -> Array:
    """Windows (batch, rows, columns, height, width, channels) as the rows of a matrix.

    They are copied in runs that lie together in an image: width * channels elements along a row of the matrix. With one
    channel that is little, and the runs along its columns are longer: then it is column-major.
    """
    _, _, columns, _, width, channels = windows.shape
    count, size = math.prod(windows.shape[:3]), math.prod(windows.shape[3:])
    if channels == 1 and columns > width and windows.strides[2] == windows.itemsize:
        return windows.transpose(3, 4, 5, 0, 1, 2).reshape(size, count).T
    return windows.reshape(count, size)


def _images_gradient(g: Array, filters: Array, rows: Axis, columns: Axis) -> Array:
    """The gradient of the images: each g times each filter, added up where the window lies.

    Along a row of the image that is a convolution with the filters reversed. It gives a product for each row of the
    filters, and these are added up across the rows of the image.
    """
    height, width, channels, out = filters.shape
    matrix = filters[:, ::-1].transpose(1, 3, 0, 2).reshape(width * out, height * channels)
    x_gradient = np.zeros((len(g), rows.padded, columns.size, channels), g.dtype)
    row_bytes = columns.size * len(matrix) * g.itemsize
    for images, some in blocks(len(g), rows.windows, row_bytes, BLOCK_BYTES):
        part = g[images, some]
        products = (_along_rows(part, columns) @ matrix).reshape(*part.shape[:2], columns.size, height, channels)
        for k in range(height):
            first = some.start * rows.stride + k * rows.dilation
            target = x_gradient[images, first : first + part.shape[1] * rows.stride : rows.stride]
            np.add(target, products[:, :, :, k], out=target)
        del products  # before the next ones need room
    return x_gradient[:, rows.inside]


def _along_rows(g: Array, columns: Axis) -> Array:
    """For each column of the image the g of the windows that reach it: (batch * rows * columns, kernel width * out).

    They are set apart by the stride, with zeros between them. The last element of a window comes first.
    """
    reach = (columns.kernel - 1) * columns.dilation
    spaced = np.zeros((*g.shape[:2], columns.size + reach, g.shape[3]), g.dtype)
    first = reach - columns.before
    spaced[:, :, first : first + columns.windows * columns.stride : columns.stride] = g
    batch, row, column, channel = spaced.strides
    shape = (*g.shape[:2], columns.size, columns.kernel, g.shape[3])
    gathered = as_strided(spaced, shape, (batch, row, column, column * columns.dilation, channel), writeable=False)
    return gathered.reshape(math.prod(shape[:3]), math.prod(shape[3:]))


class Activation(NamedTuple):
    """A function that is applied in place to a block of results while it is in cache, and its derivative as an op.

    The op's value is its argument: what comes in is activated already.
    """

    apply: Callable[[Array], object]
    derivative: Callable[[TensorLike], Tensor]


def _relu(y: Array) -> None:
    np.clip(y, 0, np.inf, out=y)


def _rectified(y: Array, /) -> Result:
    return y, (relu_vjp(y),)


ACTIVATIONS = {"relu": Activation(_relu, op(_rectified))}


def _check(x: Array, filters: Array, bias: Array | None, activation: str | None) -> None:
    """Raises ValueError or TypeError that says which argument does not fit."""
    if x.ndim != 4:
        raise ValueError(f"x must have the axes (batch, height, width, channels), but its shape is {x.shape}")
    if filters.ndim != 4 or 0 in filters.shape[:2]:
        raise ValueError(f"filters must be (height, width, channels, out), but their shape is {filters.shape}")
    if x.shape[3] != filters.shape[2]:
        raise ValueError(f"x has {x.shape[3]} channels, but the filters are for {filters.shape[2]}")
    if bias is not None and np.shape(bias) != filters.shape[3:]:
        raise ValueError(f"bias must have the shape {filters.shape[3:]}, but it is {np.shape(bias)}")
    for name, array in (("x", x), ("filters", filters)):
        if array.dtype.kind != "f":
            raise TypeError(f"{name} must be floating point, but its dtype is {array.dtype}")
    if activation not in (None, *ACTIVATIONS):
        raise ValueError(f'activation must be None or "{", ".join(ACTIVATIONS)}", but it is {activation!r}')
