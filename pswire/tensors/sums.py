"""The one place that adds many numbers: over axes, products of two arrays, and rows with equal indices.

float16 is added in float32, for it ends at 65,504 and counts by ones no further than 2,048; such a sum is float32, and
the caller rounds it once. Long sums are made of the sums of blocks: one number after the other errs by up to as many
roundings as there are numbers, and numpy adds pairwise only along the axis whose elements lie side by side (N. Higham,
"The Accuracy of Floating Point Summation", SIAM J. Sci. Comput. 14, 1993). numpy only.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

Array = npt.NDArray[Any]
Axis: TypeAlias = int | tuple[int, ...] | None

BLOCK = 256  # numbers that are added one after the other
DOT_BLOCK = 8192  # products in one call of BLAS, which has many sums side by side
SMALL = 1024  # elements of an array that numpy sums faster than it can be cut into blocks
HALF = np.dtype(np.float16)

_ONES = {np.dtype(kind): np.ones(BLOCK, kind) for kind in (np.float32, np.float64)}


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that numbers of a dtype are added in: float32 for float16, any other itself."""
    return np.dtype(np.float32) if dtype.char == "e" else dtype


def widened(x: Array) -> Array:
    """float16 as float32 of the same shape; any other array as it is."""
    return x.astype(np.float32) if x.dtype.char == "e" else x


def add_over(x: Array, axis: Axis = None, keepdims: bool = False) -> Any:  # noqa: ANN401 - as numpy
    """The sum over all axes, one or a tuple of them, as np.sum; of float16 it is float32.

    Sums over rows and columns are matrix products with ones, up to ten times as fast as numpy's sums.
    """
    x = widened(x)
    if x.size <= SMALL or x.dtype not in _ONES:
        return np.add.reduce(x, axis=axis, keepdims=keepdims)  # type: ignore[call-overload]
    ndim, shape = x.ndim, x.shape
    if axis is None:
        axes = tuple(range(ndim))
    elif isinstance(axis, int):
        axes = (normalize_axis_index(axis, ndim),)
    else:
        axes = normalize_axis_tuple(axis, ndim)
    if x.flags.c_contiguous and axes == tuple(range(ndim - len(axes), ndim)):
        total = _across(x.reshape(-1, math.prod(shape[ndim - len(axes) :])))
    elif x.flags.c_contiguous and axes == tuple(range(len(axes))):
        total = _down(x.reshape(math.prod(shape[: len(axes)]), -1))
    else:
        kept = tuple(place for place in range(ndim) if place not in axes)
        matrix = x.transpose(axes + kept).reshape(math.prod([shape[place] for place in axes]), -1)
        for_blas = x.itemsize in matrix.strides and min(matrix.strides) > 0  # for others numpy has a slow loop
        total = _down(matrix if for_blas else np.ascontiguousarray(matrix))
    return total.reshape(
        [1 if place in axes else size for place, size in enumerate(shape) if keepdims or place not in axes]
    )


def _across(matrix: Array) -> Array:
    """The sum of each row of a C-contiguous matrix; numpy adds the long ones pairwise."""
    columns = matrix.shape[1]
    if columns > BLOCK:
        return np.asarray(np.add.reduce(matrix, axis=1))
    return np.asarray(matrix @ _ONES[matrix.dtype][:columns])


def _down(matrix: Array) -> Array:
    """The sum of each column of a matrix: of the sums of blocks of rows, and so on until one block is left."""
    ones = _ONES[matrix.dtype]
    rows, columns = matrix.shape
    if rows <= BLOCK:
        return ones[:rows] @ matrix
    if columns == 1:
        return _across(matrix.reshape(1, rows))
    blocks, rest = divmod(rows, BLOCK)
    total = _down(ones @ matrix[: rows - rest].reshape(blocks, BLOCK, columns))
    return total + ones[:rest] @ matrix[rows - rest :] if rest else total


def dot(a: Array, b: Array) -> Any:  # noqa: ANN401 - a number of numpy
    """The sum of the products of the elements of two arrays of one shape, as np.vdot; of float16 it is float32.

    As that, it overflows without a warning.
    """
    a, b = widened(a).reshape(-1), widened(b).reshape(-1)
    if len(a) <= DOT_BLOCK:
        return np.vdot(a, b)
    end = len(a) - len(a) % DOT_BLOCK
    with np.errstate(over="ignore", invalid="ignore"):
        blocks = np.vecdot(a[:end].reshape(-1, DOT_BLOCK), b[:end].reshape(-1, DOT_BLOCK))
        return np.add.reduce(blocks) + np.vdot(a[end:], b[end:])


def equal_groups(indices: Array) -> tuple[Array, Array]:
    """The order that sorts indices, (n,), equal ones as they come; and where in that a group of equal ones begins.

    Returns:
        Places of indices, (n,) integers; and (n,) booleans: `indices[order[begins]]` has each index once, rising.
    """
    bits = len(indices).bit_length()
    if indices.size and 0 <= indices.min() <= indices.max() < 1 << (63 - bits):
        # Index and place in one number: numpy sorts numbers twice as fast as it finds a stable order of them.
        keys = indices.astype(np.int64) << bits
        keys |= np.arange(len(keys))
        keys.sort()
        order, ordered = keys & ((1 << bits) - 1), keys >> bits
    else:
        order = np.argsort(indices, kind="stable")
        ordered = indices[order]
    begins = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return order, begins


def sum_groups(rows: Array, order: Array, begins: Array) -> Array:
    """The sum of each group of rows, (n, ...), by what `equal_groups` says of their indices: (groups, ...), new.

    Of float16 it is float32.
    """
    shared = ~(begins & np.append(begins[1:], True))  # a group of several: adding up is dear, copying is not
    sums = widened(rows.take(order[begins], axis=0))
    if shared.any():
        several = widened(rows.take(order[shared], axis=0))
        sums[shared[begins]] = np.add.reduceat(several, np.flatnonzero(begins[shared]), axis=0)
    return sums


def add_rows(total: Array, indices: Array, rows: Array) -> None:
    """total[indices] += rows, in which an index may come several times: each of its rows is added, in their order.

    Args:
        total: (size, ...), C-contiguous; written into, and its dtype stays: float16 is rounded once, when all is added.
        indices: (n,), integers from -size to size - 1.
        rows: (n, ...), with the sizes of total after its first.

    Raises:
        ValueError: `total` is not C-contiguous, or a shape does not fit.
        IndexError: an index is outside.
    """
    if not total.flags.c_contiguous:
        raise ValueError(f"add_rows: total must be C-contiguous, but its strides are {total.strides}: copy it first")
    if not total.ndim or indices.ndim != 1 or rows.shape != (len(indices), *total.shape[1:]):
        raise ValueError(f"add_rows: rows {rows.shape} at indices {indices.shape} do not fit a total {total.shape}")
    indices = indices.astype(np.intp, copy=False)
    if total.dtype.char == "e":
        order, begins = equal_groups(np.where(indices < 0, indices + len(total), indices))
        sums = sum_groups(rows, order, begins)
        groups = indices[order[begins]]
        total[groups] = total[groups] + sums
        return
    width = math.prod(total.shape[1:])
    # np.add.at is fast where everything is flat, and slow otherwise: so each element gets its place in the flat total.
    places = indices[:, np.newaxis] * width + np.arange(width)
    np.add.at(total.reshape(-1), places.reshape(-1), rows.reshape(-1))
