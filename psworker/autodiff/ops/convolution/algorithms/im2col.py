"""Direct convolution by im2col: windows gathered into a matrix, block by block, for any strides and dilations.

Biases, activations and the tape are in `conv2d.py`.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided

from psworker.autodiff.ops.convolution.windows import Axis, pad
from psworker.autodiff.tensor import Array

BLOCK_BYTES = 2 << 20  # of gathered windows: blocks in cache are far cheaper; measured, see docs/performance.md


def convolve(x: Array, filters: Array, rows: Axis, columns: Axis, finish: Callable[[Array], object]) -> Array:
    """`conv2d` without bias and activation; `finish` may modify each block of the result in place, while in cache."""
    windows = _windows(pad(x, rows, columns), rows, columns)
    matrix = filters.reshape(math.prod(filters.shape[:3]), filters.shape[3])
    y = np.empty((*windows.shape[:3], filters.shape[3]), x.dtype)
    for block in _blocks(len(x), rows.windows, windows[:1, :1].size * x.itemsize):
        part = y[block]
        np.matmul(_gather(windows[block]), matrix, out=_flat(part))
        finish(part)
    return y


def images_gradient(g: Array, filters: Array, rows: Axis, columns: Axis) -> Array:
    """The gradient of the images: one convolution along rows per row of the reversed filters, added across rows."""
    height, width, channels, out = filters.shape
    matrix = filters[:, ::-1].transpose(1, 3, 0, 2).reshape(width * out, height * channels)
    x_gradient = np.zeros((len(g), rows.padded, columns.size, channels), g.dtype)
    row_bytes = columns.size * len(matrix) * g.itemsize
    for images, some in _blocks(len(g), rows.windows, row_bytes):
        part = g[images, some]
        products = (_along_rows(part, columns) @ matrix).reshape(*part.shape[:2], columns.size, height, channels)
        for k in range(height):
            first = some.start * rows.stride + k * rows.dilation
            target = x_gradient[images, first : first + part.shape[1] * rows.stride : rows.stride]
            np.add(target, products[:, :, :, k], out=target)
        del products  # frees the memory for the next block
    return x_gradient[:, rows.inside]


def filters_gradient(x: Array, g: Array, rows: Axis, columns: Axis) -> Array:
    """The gradient of the filters: (height, width, channels, out)."""
    windows = _windows(pad(x, rows, columns), rows, columns)
    total = np.zeros((math.prod(windows.shape[3:]), g.shape[3]), g.dtype)
    part = np.empty_like(total)
    for block in _blocks(len(x), rows.windows, windows[:1, :1].size * x.itemsize):
        np.matmul(_gather(windows[block]).T, _flat(g[block]), out=part)
        np.add(total, part, out=total)
    return total.reshape(*windows.shape[3:], g.shape[3])


def _windows(images: Array, rows: Axis, columns: Axis) -> Array:
    """A view of all windows of padded images: (batch, rows, columns, kernel height, kernel width, channels)."""
    batch, row, column, channel = images.strides
    return as_strided(
        images,
        (len(images), rows.windows, columns.windows, rows.kernel, columns.kernel, images.shape[3]),
        (batch, row * rows.stride, column * columns.stride, row * rows.dilation, column * columns.dilation, channel),
        writeable=False,
    )


def _blocks(images: int, rows: int, row_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Partition a batch into (images, rows) of at most BLOCK_BYTES, or one row: several images, or rows of one."""
    at_once = max(BLOCK_BYTES // max(row_bytes, 1), 1)
    step = max(at_once // max(rows, 1), 1)
    for image in range(0, images, step):
        for row in range(0, rows, at_once):
            yield slice(image, image + step), slice(row, row + at_once)


def _flat(x: Array) -> Array:
    """(..., channels) as a matrix."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _gather(windows: Array) -> Array:
    """Windows (batch, rows, columns, height, width, channels) as the rows of a matrix, copied in long runs.

    These have width * channels elements in row-major order; with one channel, runs in column-major order are longer.
    """
    _, _, columns, _, width, channels = windows.shape
    count, size = math.prod(windows.shape[:3]), math.prod(windows.shape[3:])
    if channels == 1 and columns > width and windows.strides[2] == windows.itemsize:
        return windows.transpose(3, 4, 5, 0, 1, 2).reshape(size, count).T
    return windows.reshape(count, size)


def _along_rows(g: Array, columns: Axis) -> Array:
    """For each image column the g of the windows that cover it: (batch * rows * columns, kernel width * out).

    `g` is dilated by the stride, with zeros between. The last element of a window comes first.
    """
    reach = (columns.kernel - 1) * columns.dilation
    spaced = np.zeros((*g.shape[:2], columns.size + reach, g.shape[3]), g.dtype)
    first = reach - columns.before
    spaced[:, :, first : first + columns.windows * columns.stride : columns.stride] = g
    batch, row, column, channel = spaced.strides
    shape = (*g.shape[:2], columns.size, columns.kernel, g.shape[3])
    gathered = as_strided(spaced, shape, (batch, row, column, column * columns.dilation, channel), writeable=False)
    return gathered.reshape(math.prod(shape[:3]), math.prod(shape[3:]))
