"""Convolution with fewer multiplications: Winograd's minimal filtering, for `conv.py`.

Tiles of the images and the filters are evaluated at a few points, as polynomials are, and multiplied there. What that
saves and what it loses to rounding is in docs/performance.md. It knows nothing of biases, activations and the tape;
only numpy and the windows may be imported here.

Along one axis (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2016, section 4, with
their G, and their A and B transposed), m results y of a filter g of r elements come of n = m + r - 1 elements d of the
image, with n products in place of m r:

    y = A' ((G g) * (B d))    and    g's gradient = G' ((A y's gradient) * (B d)).

Let V(k) be the n x k matrix whose row i has the terms cos(a)^(k - 1 - j) sin(a)^j, j = 0 ... k - 1, of a homogeneous
polynomial at the point (cos(a), sin(a)), a = a_i. The value of a product of polynomials is the product of their values,
so its coefficients are inverse(V(n)) ((V(m) f) * (V(r) g)); a filter slid over an image is the transpose of that in f
(S. Winograd, "Arithmetic Complexity of Computations", 1980). Hence A = V(m), G = V(r), B = inverse(V(n))', but for the
scale of their rows.

With two axes a tile has points x points values, and at each of these points there is one matrix product over all tiles
of all images: (tiles, channels) times (channels, out).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from psworker.autodiff.ops.windows import Axis
from psworker.autodiff.tensor import Array

# All measured, see docs/performance.md.
RESULTS = {3: 4, 4: 3, 5: 3}  # of a tile along an axis, by the length of the filters: more lose too much to rounding
TILES = 2  # of a patch along an axis, at most
BLOCK_BYTES = 2 << 20  # of values at points at a time
LEAST_IMAGES = 8  # below, the products are too small
LARGEST_SHARE = 0.6  # of the multiplications, above which the copies cost more than is saved


def pays(images: int, channels: int, out: int, rows: Axis, columns: Axis, dtype: np.dtype) -> bool:
    """Whether a convolution can be done so and is then faster. Never in float64: who takes that wants its digits."""
    if dtype != np.float32 or images < LEAST_IMAGES or 0 in (rows.windows, columns.windows, channels, out):
        return False
    if any(axis.kernel not in RESULTS or axis.stride != 1 or axis.dilation != 1 for axis in (rows, columns)):
        return False
    plain = images * rows.windows * columns.windows * rows.kernel * columns.kernel * channels * out
    return multiplications(images, channels, out, rows, columns) <= LARGEST_SHARE * plain


def multiplications(images: int, channels: int, out: int, rows: Axis, columns: Axis) -> int:
    """How many `convolve` makes, those of the transforms included. A gradient makes about as many."""
    an_image = 0
    for down in patches(rows):
        for along in patches(columns):
            for depth, one, other in (
                (channels, down.of_image, along.of_image),
                (out, down.of_results, along.of_results),
            ):
                an_image += depth * (one.size * other.shape[2] + math.prod(one.shape[:2]) * other.size)
            an_image += down.values * along.values * channels * out
    height, width = len(_of_kernel(rows.kernel)), len(_of_kernel(columns.kernel))
    filters = height * columns.kernel * (rows.kernel + width) * channels * out
    return images * an_image + filters


def convolve(
    x: Array, filters: Array, rows: Axis, columns: Axis, finish: Callable[[Array], object] | None = None
) -> Array:
    """The y of `conv2d` without its bias and activation.

    `finish` is called with each block of it while that is in cache, and may change it in place.
    """
    channels, out = filters.shape[2:]
    y = np.empty((len(x), rows.windows, columns.windows, out), x.dtype)
    at_points = _filters_at_points(filters)
    for block, down, along in _blocks(len(x), channels + out, rows, columns):
        images = x[block, down.image, along.image]
        target = y[block, down.results, along.results]
        count, height, width, _ = target.shape
        points, tiles, _ = down.of_results.shape
        products = np.empty((at_points.shape[1], along.of_results.shape[1] * tiles * count, out), x.dtype)
        by_tiles = products.reshape(along.values, tiles, count * out).transpose(1, 0, 2)
        lines = np.empty((points, tiles, width, count * out), x.dtype)
        for k, values in enumerate(_at_points(images, down.of_image, along.of_image)):
            np.matmul(values, at_points[k], out=products)
            np.matmul(_flat(along.of_results).T, by_tiles, out=lines[k])
        results = _flat(down.of_results).T @ lines.reshape(down.values, -1)
        target[:] = results.reshape(height, width, count, out).transpose(2, 0, 1, 3)
        if finish is not None:
            finish(target)
    return y


def images_gradient(g: Array, filters: Array, rows: Axis, columns: Axis) -> Array:
    """The gradient of the images: g convolved with the filters turned around, their channels exchanged."""
    return convolve(g, filters[::-1, ::-1].transpose(0, 1, 3, 2), *turned(rows, columns))


def turned(rows: Axis, columns: Axis) -> tuple[Axis, Axis]:
    """The axes on which the windows' gradients are the image, and each element of the image has a window."""
    return _turned(rows), _turned(columns)


def _turned(axis: Axis) -> Axis:
    reach = axis.kernel - 1
    return axis._replace(size=axis.windows, windows=axis.size, before=reach - axis.before, after=reach - axis.after)


def filters_gradient(x: Array, g: Array, rows: Axis, columns: Axis) -> Array:
    """The gradient of the filters: (height, width, channels, out)."""
    channels, out = x.shape[3], g.shape[3]
    height, width = _of_kernel(rows.kernel), _of_kernel(columns.kernel)
    total = np.zeros((len(height), len(width), channels, out), x.dtype)
    for block, down, along in _blocks(len(x), channels + out, rows, columns):
        of_images = _at_points(x[block, down.image, along.image], down.of_image, along.of_image)
        of_results = _at_points(g[block, down.results, along.results], down.of_results, along.of_results)
        for k, (values, others) in enumerate(zip(of_images, of_results, strict=True)):
            total[k] += values.transpose(0, 2, 1) @ others
    lines = width.T @ total.reshape(len(height), len(width), channels * out)
    gradient: Array = height.T @ lines.reshape(len(height), -1)
    return gradient.reshape(rows.kernel, columns.kernel, channels, out)


def _filters_at_points(filters: Array) -> Array:
    """G filters G': (points, points, channels, out)."""
    height, width, channels, out = filters.shape
    lines = _of_kernel(height) @ filters.reshape(height, -1)
    values: Array = _of_kernel(width) @ lines.reshape(len(lines), width, -1)
    return values.reshape(*values.shape[:2], channels, out)


def _at_points(images: Array, down: Array, along: Array) -> Iterator[Array]:
    """A patch (batch, height, width, channels) at one after the other of the vertical axis' points.

    `down` and `along` are matrices of a `Patch`. What comes is (points of the horizontal axis, tiles * batch, channels)
    in memory that the next one takes. With the batch beside the channels both transforms are products with a matrix,
    and nothing is copied between.
    """
    count, height, width, channels = images.shape
    inside = np.ascontiguousarray(images.transpose(1, 2, 0, 3)).reshape(height, -1)
    lines = (_flat(down) @ inside).reshape(*down.shape[:2], width, count * channels)
    values = np.empty((math.prod(along.shape[:2]), down.shape[1], count * channels), images.dtype)
    for line in lines:
        np.matmul(_flat(along), line, out=values.transpose(1, 0, 2))
        yield values.reshape(len(along), -1, channels)


def _flat(matrix: Array) -> Array:
    """A patch's matrix (points, tiles, elements) with points and tiles in one."""
    points, tiles, elements = matrix.shape
    return matrix.reshape(points * tiles, elements)


def _blocks(images: int, depth: int, rows: Axis, columns: Axis) -> Iterator[tuple[slice, Patch, Patch]]:
    """Some images and a patch of theirs at a time, small enough for the cache."""
    for down in patches(rows):
        for along in patches(columns):
            image_bytes = down.values * along.values * depth * np.dtype(np.float32).itemsize
            step = max(BLOCK_BYTES // image_bytes, LEAST_IMAGES)
            for image in range(0, images, step):
                yield slice(image, min(image + step, images)), down, along


class Patch(NamedTuple):
    """A few tiles along an axis: `results`, the windows that are theirs, and `image`, the elements that these read.

    The matrices B and A of all its tiles are (points, tiles, elements) and (points, tiles, results). Elements beyond
    the image, which are zero, and results beyond the last window have no columns.
    """

    results: slice
    image: slice
    of_image: Array
    of_results: Array

    @property
    def values(self) -> int:
        """How many values its tiles have at their points, along this axis."""
        return math.prod(self.of_image.shape[:2])


@functools.lru_cache
def patches(axis: Axis) -> tuple[Patch, ...]:
    """The patches that cover all windows of an axis."""
    size = RESULTS[axis.kernel]
    of_results, _, of_image = matrices(size, axis.kernel)
    found = []
    for start in range(0, axis.windows, TILES * size):
        stop = min(start + TILES * size, axis.windows)
        tiles = -(-(stop - start) // size)
        first = start - axis.before  # of the patch, counted in the image
        image = slice(max(first, 0), min(first + tiles * size + axis.kernel - 1, axis.size))
        elements = _of_tiles(of_image, tiles, size)[:, :, image.start - first : image.stop - first]
        results = _of_tiles(of_results, tiles, size)[:, :, : stop - start]
        found.append(Patch(slice(start, stop), image, elements.copy(), results.copy()))
    return tuple(found)


def _of_tiles(matrix: Array, tiles: int, step: int) -> Array:
    """The matrix of a tile (points, elements) for several, `step` elements apart: (points, tiles, all elements)."""
    points, elements = matrix.shape
    banded = np.zeros((points, tiles, (tiles - 1) * step + elements), np.float32)
    for tile in range(tiles):
        banded[:, tile, tile * step : tile * step + elements] = matrix
    return banded


@functools.lru_cache
def _of_kernel(kernel: int) -> Array:
    """G in float32: (points, kernel)."""
    return matrices(RESULTS[kernel], kernel)[1].astype(np.float32)


def matrices(results: int, kernel: int) -> tuple[Array, Array, Array]:
    """A, G and B of the module's formulas, in float64, for m = `results` and r = `kernel`.

    The points lie at equal angles, pi / n apart: with n = 8 they are about 0, 1, -1, 1/2, -1/2, 2, -2 and infinity, and
    with 7 the error of y is a third less than with seven of these. Rows of A and G are scaled to a length near one, by
    powers of two, which are exact, and those of B the other way.
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
