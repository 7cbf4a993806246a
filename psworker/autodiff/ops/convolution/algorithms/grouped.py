"""Grouped convolution, of equal groups of channels and filters; with one channel a group, depthwise convolution.

The n-th group of `channels / groups` channels is convolved with the n-th group of `out / groups` filters. A depthwise
convolution adds one multiple of the image for each element of the filters, as its matrices would have one column; other
groups are convolved directly one after the other (`im2col.py`). Biases, activations and the tape are in `conv2d.py`.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from pswire.tensors.sums import add_over
from psworker.autodiff.ops.convolution.algorithms import im2col
from psworker.autodiff.ops.convolution.windows import Axis, pad
from psworker.autodiff.tensor import Array


def convolve(x: Array, filters: Array, rows: Axis, columns: Axis, groups: int) -> Array:
    """`conv2d` without bias and activation, `filters` (height, width, channels / groups, out)."""
    if filters.shape[2] != 1:
        parts = zip(_split(x, groups), _split(filters, groups), strict=True)
        return np.concatenate([im2col.convolve(image, part, rows, columns, _unchanged) for image, part in parts], -1)
    elements = _by_channel(filters[:, :, 0], groups)
    y = np.zeros((len(x), rows.windows, columns.windows, *elements.shape[2:]), x.dtype)
    part = np.empty(y.shape[1:], x.dtype)
    for image, target in zip(pad(x, rows, columns), y, strict=True):
        for (k, down), (m, along) in _taps(rows, columns):
            np.multiply(image[down, along, :, np.newaxis], elements[k, m], out=part)
            target += part
    return y.reshape(*y.shape[:3], filters.shape[3])


def images_gradient(g: Array, filters: Array, rows: Axis, columns: Axis, groups: int) -> Array:
    """The gradient of the images: (batch, height, width, channels)."""
    if filters.shape[2] != 1:
        parts = zip(_split(g, groups), _split(filters, groups), strict=True)
        return np.concatenate([im2col.images_gradient(some, part, rows, columns) for some, part in parts], -1)
    elements = _by_channel(filters[:, :, 0], groups)
    x_gradient = np.zeros((len(g), rows.padded, columns.padded, groups), g.dtype)
    for some, target in zip(_by_channel(g, groups), x_gradient, strict=True):
        for (k, down), (m, along) in _taps(rows, columns):
            part = some * elements[k, m]
            target[down, along] += part[..., 0] if part.shape[-1] == 1 else np.add.reduce(part, axis=-1)
    return x_gradient[:, rows.inside, columns.inside]


def filters_gradient(x: Array, g: Array, rows: Axis, columns: Axis, groups: int) -> Array:
    """The gradient of the filters: (height, width, channels / groups, out)."""
    if x.shape[3] != groups:
        parts = zip(_split(x, groups), _split(g, groups), strict=True)
        return np.concatenate([im2col.filters_gradient(image, some, rows, columns) for image, some in parts], -1)
    by_channel = _by_channel(g, groups)
    total = np.zeros((rows.kernel, columns.kernel, *by_channel.shape[3:]), g.dtype)
    part = np.empty(by_channel.shape[1:], g.dtype)
    for image, some in zip(pad(x, rows, columns), by_channel, strict=True):
        for (k, down), (m, along) in _taps(rows, columns):
            np.multiply(image[down, along, :, np.newaxis], some, out=part)
            total[k, m] += add_over(part, (0, 1))
    return total.reshape(rows.kernel, columns.kernel, 1, g.shape[3])


def _split(x: Array, groups: int) -> list[Array]:
    """The groups of the last axis, as views."""
    return np.split(x, groups, axis=-1)


def _by_channel(results: Array, groups: int) -> Array:
    """(..., out) of a depthwise convolution as (..., channels, out / channels)."""
    return results.reshape(*results.shape[:-1], groups, results.shape[-1] // groups)


def _taps(rows: Axis, columns: Axis) -> Iterator[tuple[tuple[int, slice], tuple[int, slice]]]:
    """Each element (k, m) of a window, with the slices of a padded image that it takes in all windows."""
    down = [(k, rows.taps(k)) for k in range(rows.kernel)]
    along = [(m, columns.taps(m)) for m in range(columns.kernel)]
    return product(down, along)


def _unchanged(part: Array) -> None:
    """A block of results without bias and activation."""
