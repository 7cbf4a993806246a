"""The dynamic range of images and filters: whether it is narrow enough for `winograd.py`.

The error of a tile is proportional to the largest magnitude in its input: small results beside a large one lose
digits, and a non-finite element spreads to all results of its tile. Such images are convolved by `im2col.py`.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from psworker.autodiff.ops.convolution.windows import Axis
from psworker.autodiff.tensor import Array

# Both limit sums of squares. A sum below float32's smallest number, of elements of 1e-23, counts as zero.
WIDEST = 2.0**16  # pixel over window; 256 as a ratio of lengths, above those of training (docs/performance.md)
LARGEST = 1e30  # below it, intermediate values do not overflow


def narrow_images(x: Array, rows: Axis, columns: Axis) -> Array:
    """Booleans (batch,): whether no pixel of an image exceeds WIDEST times any nonzero window."""
    with np.errstate(invalid="ignore", over="ignore"):  # too large is inf in float32, and inf * 0 NaN
        pixels = np.vecdot(x, x)
        windows = _covered(rows) @ (pixels @ _covered(columns).T)
        return _narrow(pixels, windows, (1, 2))


def narrow_filters(filters: Array) -> bool:
    """Whether filters (height, width, channels, out) are narrow, as an image whose pixels are its windows.

    At the edges of an image a result may depend on a single filter position.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        flat = filters.reshape(math.prod(filters.shape[:2]), -1)
        places = np.vecdot(flat, flat)
        return bool(_narrow(places, places, None))


def _narrow(pixels: Array, windows: Array, axis: tuple[int, int] | None) -> Array:
    least = np.min(windows, axis, where=windows > 0, initial=np.inf)
    narrow: Array = pixels.max(axis) <= np.minimum(WIDEST * least, LARGEST)  # false for NaN
    return narrow


@functools.lru_cache
def _covered(axis: Axis) -> Array:
    """The elements that each window covers, as zeros and ones: (windows, size)."""
    covered = np.zeros((axis.windows, axis.padded), np.float32)
    for k in range(axis.kernel):
        np.fill_diagonal(covered[:, k:], 1)  # stride and dilation are 1
    return covered[:, axis.inside].copy()
