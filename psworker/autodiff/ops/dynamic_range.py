"""Whether the magnitudes within an image, or within filters, are near enough to each other for `winograd.py`.

A tile's error is in proportion to the largest magnitude that the tile reads, so small results beside a large one would
lose their digits; an element that is not finite would reach all results of its tile. The images of which that holds are
convolved the plain way. Only numpy and the windows may be imported here.
"""

from __future__ import annotations

import functools

import numpy as np

from psworker.autodiff.ops.windows import Axis, blocks
from psworker.autodiff.tensor import Array

WIDEST = 256  # of a pixel to a window, see docs/performance.md: images and gradients of a training stay below 100
LARGEST = 1e15  # of a sum of magnitudes: no product overflows at the points where it would not in the result
BLOCK_BYTES = 1 << 18  # of magnitudes at a time: measured


def narrow_images(x: Array, rows: Axis, columns: Axis) -> Array:
    """For each image of a batch (batch, height, width, channels) whether minimal filtering keeps its small results.

    That is so if no pixel is more than WIDEST times any window that is not zero, each by the sum of its magnitudes. It
    depends on the image alone.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite compares as false
        pixels = _pixels(x)
        windows = _reached(rows) @ (pixels @ _reached(columns).T)
        largest = pixels.max(axis=(1, 2))
        narrow: Array = (largest <= LARGEST) & (largest <= WIDEST * _least(windows, (1, 2)))
    return narrow


def narrow_filters(filters: Array) -> bool:
    """Whether minimal filtering keeps small results with these filters (height, width, channels, out).

    As for images, with the elements at one place, of all channels, as a pixel. A result has part in all of them but at
    the edges of an image.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        places = _pixels(filters.reshape(1, *filters.shape[:2], -1))
        largest = places.max()
        return bool(largest <= LARGEST and largest <= WIDEST * _least(places, None))


def _pixels(x: Array) -> Array:
    """The sum of magnitudes over the channels: (batch, height, width)."""
    images, height, width, channels = x.shape
    pixels = np.empty((images, height, width), x.dtype)
    ones = np.ones(channels, x.dtype)
    for block in blocks(images, height, width * channels * x.itemsize, BLOCK_BYTES):
        np.matmul(np.abs(x[block]), ones, out=pixels[block])
    return pixels


def _least(sums: Array, axis: tuple[int, int] | None) -> Array:
    """The least of them that is not zero; infinite when all are."""
    least: Array = np.where(sums == 0, np.float32(np.inf), sums).min(axis=axis)
    return least


@functools.lru_cache
def _reached(axis: Axis) -> Array:
    """Which elements of the image each window covers, as zeros and ones: (windows, size)."""
    reached = np.zeros((axis.windows, axis.padded), np.float32)
    for k in range(axis.kernel):
        reached[np.arange(axis.windows), np.arange(axis.windows) * axis.stride + k * axis.dilation] = 1
    return reached[:, axis.inside].copy()
