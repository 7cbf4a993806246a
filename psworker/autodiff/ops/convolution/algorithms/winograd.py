"""Winograd convolution (minimal filtering), which needs fewer multiplications than direct convolution.

Tiles of images and filters are evaluated at points, as polynomials, and multiplied there. docs/performance.md has the
speed, docs/reference/convolution.md a bound of rounding errors. The error of a tile is proportional to the largest
magnitude in its input, and a non-finite element spreads to all its results: images and filters whose dynamic range is
not narrow are for `im2col.py`.

Along one axis (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2016, section 4, with their G,
and their A and B transposed), m results y of a filter g of r elements over n = m + r - 1 image elements d take n
products instead of m r:

    y = A' ((G g) * (B d))    and    g's gradient = G' ((A y's gradient) * (B d)).

Let V(k) be the n x k matrix whose row i has the terms cos(a)^(k - 1 - j) sin(a)^j, j = 0 ... k - 1, of a homogeneous
polynomial at the point (cos(a), sin(a)), a = a_i. A product of polynomials f and g has the coefficients
inverse(V(n)) ((V(m) f) * (V(r) g)); correlation with a filter is its transpose in f (S. Winograd, "Arithmetic
Complexity of Computations", 1980). Hence A = V(m), G = V(r), B = inverse(V(n))', up to the scale of rows.

With two axes a tile has points x points values; at each of these points one matrix product covers all tiles of all
images: (tiles, channels) times (channels, out).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from psworker.autodiff.ops.convolution.windows import Axis
from psworker.autodiff.tensor import Array

# All measured, see docs/performance.md.
RESULTS = {3: 4, 4: 3, 5: 3}  # per tile and axis, by filter length; larger tiles have excessive rounding errors
TILES = 2  # per patch and axis, at most
BLOCK_BYTES = 2 << 20  # of values at points
MIN_IMAGES = 8  # fewer make the products too small
MAX_MULTIPLICATION_RATIO = 0.6  # of im2col's multiplications; above, copying costs more than is saved
# Both limit sums of squares. A sum below float32's smallest number, of elements of 1e-23, counts as zero.
MAX_DYNAMIC_RANGE = 2.0**16  # pixel over window; 256 as a ratio of lengths, above those of training
MAX_PIXEL = 1e30  # up to it, intermediate values do not overflow


def is_faster(images: int, channels: int, out: int, rows: Axis, columns: Axis, dtype: np.dtype) -> bool:
    """True if this algorithm applies and is faster. Never in float64, which is chosen for its precision."""
    if dtype != np.float32 or images < MIN_IMAGES or 0 in (rows.windows, columns.windows, channels, out):
        return False
    if any(axis.kernel not in RESULTS or axis.stride != 1 or axis.dilation != 1 for axis in (rows, columns)):
        return False
    plain = images * rows.windows * columns.windows * rows.kernel * columns.kernel * channels * out
    return multiplications(images, channels, out, rows, columns) <= MAX_MULTIPLICATION_RATIO * plain


def multiplications(images: int, channels: int, out: int, rows: Axis, columns: Axis) -> int:
    """Number of multiplications of `convolve`, transforms included; a gradient takes about as many."""
    per_image = 0
    for down, along in itertools.product(patches(rows), patches(columns)):
        transforms = ((channels, down.of_image, along.of_image), (out, down.of_results, along.of_results))
        for depth, one, other in transforms:
            per_image += depth * (one.size * other.shape[1] + len(one) * other.size)
        per_image += len(down.of_image) * len(along.of_image) * channels * out
    height, width = len(_filter_transform(rows.kernel)), len(_filter_transform(columns.kernel))
    filters = height * columns.kernel * (rows.kernel + width) * channels * out
    return images * per_image + filters


def has_narrow_range(x: Array, rows: Axis, columns: Axis) -> Array:
    """Booleans (batch,): whether no pixel of an image exceeds MAX_DYNAMIC_RANGE times any nonzero window."""
    with np.errstate(invalid="ignore", over="ignore"):  # too large is inf in float32, and inf * 0 NaN
        pixels = np.vecdot(x, x)
        windows = _covered(rows) @ (pixels @ _covered(columns).T)
        return _narrow(pixels, windows, (1, 2))


def filters_have_narrow_range(filters: Array) -> bool:
    """The same of filters: at the edges of an image a result may depend on a single position, which is its window."""
    with np.errstate(invalid="ignore", over="ignore"):
        flat = filters.reshape(*filters.shape[:2], -1)
        places = np.vecdot(flat, flat)
        return bool(_narrow(places, places, None))


def _narrow(pixels: Array, windows: Array, axis: tuple[int, int] | None) -> Array:
    least = np.min(windows, axis, where=windows > 0, initial=np.inf)
    narrow: Array = pixels.max(axis) <= np.minimum(MAX_DYNAMIC_RANGE * least, MAX_PIXEL)  # false for NaN
    return narrow


@functools.lru_cache
def _covered(axis: Axis) -> Array:
    """The elements that each window covers, as zeros and ones: (windows, size)."""
    offsets = np.arange(axis.size) + axis.before - np.arange(axis.windows)[:, np.newaxis]
    return ((offsets >= 0) & (offsets < axis.kernel)).astype(np.float32)


def convolve(
    x: Array, filters: Array, rows: Axis, columns: Axis, finish: Callable[[Array], object] | None = None
) -> Array:
    """`conv2d` without bias and activation; `finish` may modify each block of the result in place, while in cache."""
    channels, out = filters.shape[2:]
    y = np.empty((len(x), rows.windows, columns.windows, out), x.dtype)
    lines_of_filters = _filter_transform(rows.kernel) @ filters.reshape(rows.kernel, -1)
    at_points = _filter_transform(columns.kernel) @ lines_of_filters.reshape(-1, columns.kernel, channels * out)
    at_points = at_points.reshape(*at_points.shape[:2], channels, out)  # G filters G'
    for block, down, along in _blocks(len(x), channels + out, rows, columns):
        images = x[block, down.image, along.image]
        target = y[block, down.results, along.results]
        count, height, width, _ = target.shape
        products = np.empty((at_points.shape[1], along.tiles * down.tiles * count, out), x.dtype)
        by_tiles = products.reshape(-1, down.tiles, count * out).transpose(1, 0, 2)
        lines = np.empty((len(at_points), down.tiles, width, count * out), x.dtype)
        for k, values in enumerate(_at_points(images, down.tiles, down.of_image, along.tiles, along.of_image)):
            np.matmul(values, at_points[k], out=products)
            np.matmul(along.of_results.T, by_tiles, out=lines[k])
        results = down.of_results.T @ lines.reshape(-1, width * count * out)
        target[:] = results.reshape(height, width, count, out).transpose(2, 0, 1, 3)
        if finish is not None:
            finish(target)
    return y


def images_gradient(g: Array, filters: Array, rows: Axis, columns: Axis) -> Array:
    """The gradient of the images: g convolved with the rotated filters, with input and output channels swapped."""
    return convolve(g, filters[::-1, ::-1].transpose(0, 1, 3, 2), rows.transposed, columns.transposed)


def filters_gradient(x: Array, g: Array, rows: Axis, columns: Axis) -> Array:
    """The gradient of the filters: (height, width, channels, out)."""
    channels, out = x.shape[3], g.shape[3]
    height, width = _filter_transform(rows.kernel), _filter_transform(columns.kernel)
    total = np.zeros((len(height), len(width), channels, out), x.dtype)
    for block, down, along in _blocks(len(x), channels + out, rows, columns):
        images, results = x[block, down.image, along.image], g[block, down.results, along.results]
        of_images = _at_points(images, down.tiles, down.of_image, along.tiles, along.of_image)
        of_results = _at_points(results, down.tiles, down.of_results, along.tiles, along.of_results)
        for k, (values, others) in enumerate(zip(of_images, of_results, strict=True)):
            total[k] += values.transpose(0, 2, 1) @ others
    lines = width.T @ total.reshape(len(height), len(width), channels * out)
    gradient: Array = height.T @ lines.reshape(len(height), -1)
    return gradient.reshape(rows.kernel, columns.kernel, channels, out)


def _at_points(images: Array, down_tiles: int, down: Array, along_tiles: int, along: Array) -> Iterator[Array]:
    """Values of a patch (batch, height, width, channels), one point of the vertical axis at a time.

    `down` and `along` are matrices of a `Patch`. Yields (points of the horizontal axis, tiles * batch, channels), in a
    buffer that the next value reuses. With the batch beside the channels, both transforms are matrix products without
    copies between them.
    """
    count, height, width, channels = images.shape
    inside = np.ascontiguousarray(images.transpose(1, 2, 0, 3)).reshape(height, -1)
    lines = (down @ inside).reshape(-1, down_tiles, width, count * channels)
    values = np.empty((len(along), down_tiles, count * channels), images.dtype)
    for line in lines:
        np.matmul(along, line, out=values.transpose(1, 0, 2))
        yield values.reshape(-1, along_tiles * down_tiles * count, channels)


def _blocks(images: int, depth: int, rows: Axis, columns: Axis) -> Iterator[tuple[slice, Patch, Patch]]:
    """Blocks of images, with the two axes of a patch, that fit into the cache."""
    for down, along in itertools.product(patches(rows), patches(columns)):
        image_bytes = len(down.of_image) * len(along.of_image) * depth * np.dtype(np.float32).itemsize
        step = max(BLOCK_BYTES // image_bytes, MIN_IMAGES)
        for image in range(0, images, step):
            yield slice(image, image + step), down, along


class Patch(NamedTuple):
    """A few adjacent tiles along an axis: `results` are their windows, `image` the elements that the windows read.

    B and A of all its tiles: `of_image`, (points * tiles, elements), and `of_results`, (points * tiles, results),
    without columns for elements outside the image and results beyond the last window.
    """

    tiles: int
    results: slice
    image: slice
    of_image: Array
    of_results: Array


@functools.lru_cache
def patches(axis: Axis) -> tuple[Patch, ...]:
    """Patches that cover all windows of an axis."""
    size = RESULTS[axis.kernel]
    of_results, _, of_image = matrices(size, axis.kernel)
    found = []
    for start in range(0, axis.windows, TILES * size):
        stop = min(start + TILES * size, axis.windows)
        tiles = -(-(stop - start) // size)
        first = start - axis.before  # of the patch, in image coordinates
        image = slice(max(first, 0), min(first + tiles * size + axis.kernel - 1, axis.size))
        elements = _of_tiles(of_image, tiles, size)[:, image.start - first : image.stop - first]
        results = _of_tiles(of_results, tiles, size)[:, : stop - start]
        found.append(Patch(tiles, slice(start, stop), image, elements.copy(), results.copy()))
    return tuple(found)


def _of_tiles(matrix: Array, tiles: int, step: int) -> Array:
    """The matrix of a tile (points, elements) for tiles `step` elements apart: (points * tiles, all elements)."""
    points, elements = matrix.shape
    banded = np.zeros((points, tiles, (tiles - 1) * step + elements), np.float32)
    for tile in range(tiles):
        banded[:, tile, tile * step : tile * step + elements] = matrix
    return banded.reshape(points * tiles, -1)


@functools.lru_cache
def _filter_transform(kernel: int) -> Array:
    """G in float32: (points, kernel)."""
    return matrices(RESULTS[kernel], kernel)[1].astype(np.float32)


def matrices(results: int, kernel: int) -> tuple[Array, Array, Array]:
    """A, G and B of the module's formulas, in float64, for m = `results` and r = `kernel`.

    The points lie at equal angles, pi / n apart: for n = 8 about 0, 1, -1, 1/2, -1/2, 2, -2 and infinity; for n = 7 the
    error of y is a third smaller than with seven of these. Rows of A and G are scaled to a length near one by powers of
    two, which are exact, and those of B inversely.
    """
    points = results + kernel - 1
    angles = np.arange(points) * (np.pi / points)

    def terms(count: int) -> Array:
        power = np.arange(count)
        values: Array = np.cos(angles)[:, np.newaxis] ** power[::-1] * np.sin(angles)[:, np.newaxis] ** power
        return values

    of_results, of_kernel, of_image = terms(results), terms(kernel), np.linalg.inv(terms(points)).T
    for matrix in (of_results, of_kernel):
        scale = 2.0 ** np.round(np.log2(np.linalg.norm(matrix, axis=1, keepdims=True)))
        matrix /= scale
        of_image *= scale
    return of_results, of_kernel, of_image
