"""Plain convolution of images, for `conv.py`: matrix products over blocks of images that stay in cache.

The windows are gathered into a matrix (im2col), which takes any strides and dilations. It knows nothing of biases,
activations and the tape. What takes the time, and what was tried to make it less, is in docs/performance.md; only numpy
and the windows may be imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided

from psworker.autodiff.ops.windows import Axis, blocks, pad
from psworker.autodiff.tensor import Array

BLOCK_BYTES = 2 << 20  # of columns at a time: measured, see docs/performance.md


def convolve(x: Array, filters: Array, rows: Axis, columns: Axis, finish: Callable[[Array], object]) -> Array:
    """The y of `conv2d` without its bias and activation.

    `finish` is called with each block of it while that is in cache, and may change it in place.
    """
    windows = _windows(pad(x, rows, columns), rows, columns)
    matrix = filters.reshape(math.prod(filters.shape[:3]), filters.shape[3])
    y = np.empty((*windows.shape[:3], filters.shape[3]), x.dtype)
    for block in _blocks(windows):
        part = y[block]
        np.matmul(_gather(windows[block]), matrix, out=_flat(part))
        finish(part)
    return y


def images_gradient(g: Array, filters: Array, rows: Axis, columns: Axis) -> Array:
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


def filters_gradient(x: Array, g: Array, rows: Axis, columns: Axis) -> Array:
    """The gradient of the filters: (height, width, channels, out)."""
    windows = _windows(pad(x, rows, columns), rows, columns)
    total = np.zeros((math.prod(windows.shape[3:]), g.shape[3]), g.dtype)
    part = np.empty_like(total)
    for block in _blocks(windows):
        np.matmul(_gather(windows[block]).T, _flat(g[block]), out=part)
        np.add(total, part, out=total)
    return total.reshape(*windows.shape[3:], g.shape[3])


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
