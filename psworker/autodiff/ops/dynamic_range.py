"""Whether the magnitudes within an image, or within filters, are near enough to each other for `winograd.py`.

The error of a tile is in proportion to the largest magnitude that the tile reads: small results beside a large one
lose their digits, and an element that is not finite reaches all results of its tile. Images of which that holds are
convolved the plain way. Only numpy and the windows may be imported here.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from psworker.autodiff.ops.windows import Axis
from psworker.autodiff.tensor import Array

# Both are of sums of squares. Those below float32's least number, of elements of 1e-23, count as zero.
WIDEST = 2.0**16  # of a pixel to a window: 256 as a length, more than trainings have; measured, see docs/performance.md
LARGEST = 1e30  # nothing overflows on the way to a result that does not


def narrow_images(x: Array, rows: Axis, columns: Axis) -> Array:
    """For each image (batch, height, width, channels) whether minimal filtering keeps the digits of its small results.

    That is so if no pixel is larger than WIDEST times any window that is not zero. It depends on the image alone.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # in float32 all that is too large is infinite, and inf * 0 NaN
        pixels = np.vecdot(x, x)
        windows = _covered(rows) @ (pixels @ _covered(columns).T)
        return _narrow(pixels, windows, (1, 2))


def narrow_filters(filters: Array) -> bool:
    """Whether minimal filtering keeps small results with these filters (height, width, channels, out).

    As for images; a pixel is what the filters have at one place, and a window is that pixel: at the edges of an image
    some results have no part in the others.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        flat = filters.reshape(math.prod(filters.shape[:2]), -1)
        places = np.vecdot(flat, flat)
        return bool(_narrow(places, places, None))


def _narrow(pixels: Array, windows: Array, axis: tuple[int, int] | None) -> Array:
    least = np.min(windows, axis, where=windows > 0, initial=np.inf)
    narrow: Array = pixels.max(axis) <= np.minimum(WIDEST * least, LARGEST)  # which NaN is not
    return narrow


@functools.lru_cache
def _covered(axis: Axis) -> Array:
    """Which elements of the image each window covers, as zeros and ones: (windows, size)."""
    covered = np.zeros((axis.windows, axis.padded), np.float32)
    for k in range(axis.kernel):
        np.fill_diagonal(covered[:, k:], 1)  # the windows have neither stride nor dilation
    return covered[:, axis.inside].copy()
