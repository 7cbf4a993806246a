"""Accurate sums: over axes, of products, and of rows with equal indices.

float16 is added in float32, as it overflows at 65,504 and a running count in it stalls at 2,048; the float32 sum is
rounded once by the caller. Long sums are sums of blocks, as the error of sequential addition grows with the number of
terms and numpy adds pairwise only along a contiguous axis (N. Higham, "The Accuracy of Floating Point Summation", SIAM
J. Sci. Comput. 14, 1993).
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

Array = npt.NDArray[Any]
Axis: TypeAlias = int | tuple[int, ...] | None

BLOCK = 256  # numbers that are added sequentially
DOT_BLOCK = 8192  # products in one BLAS call, which accumulates many sums in parallel
SMALL = 1024  # below this size, blocks are not worthwhile
HALF = np.dtype(np.float16)

_ONES = {np.dtype(kind): np.ones(BLOCK, kind) for kind in (np.float32, np.float64)}


def exact_sum(terms: Sequence[float]) -> float:
    """The exactly rounded sum of numbers, of which some may be infinite, or too large together."""
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):  # a partial sum is too large, or there are infinities of both signs
        return sum(terms)


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which numbers of a dtype are added: float32 for float16, otherwise itself."""
    return np.dtype(np.float32) if dtype.char == "e" else dtype


def widened(x: Array) -> Array:
    """float16 as float32; any other array unchanged."""
    return x.astype(np.float32) if x.dtype.char == "e" else x


def add_over(x: Array, axis: Axis = None, keepdims: bool = False) -> Any:  # noqa: ANN401 - as numpy
    """np.sum by matrix products with ones, up to ten times as fast; float32 for float16."""
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
        for_blas = x.itemsize in matrix.strides and min(matrix.strides) > 0  # numpy is slow with other layouts
        total = _down(matrix if for_blas else np.ascontiguousarray(matrix))
    return total.reshape(
        [1 if place in axes else size for place, size in enumerate(shape) if keepdims or place not in axes]
    )


def _across(matrix: Array) -> Array:
    """The sum of each row of a C-contiguous matrix; numpy adds long rows pairwise."""
    columns = matrix.shape[1]
    if columns > BLOCK:
        return np.asarray(np.add.reduce(matrix, axis=1))
    return np.asarray(matrix @ _ONES[matrix.dtype][:columns])


def _down(matrix: Array) -> Array:
    """The sum of each column of a matrix, recursively over blocks of rows."""
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
    """np.vdot of two arrays of one shape; float32 for float16. It overflows without a warning."""
    a, b = widened(a).reshape(-1), widened(b).reshape(-1)
    if len(a) <= DOT_BLOCK:
        return np.vdot(a, b)
    end = len(a) - len(a) % DOT_BLOCK
    with np.errstate(over="ignore", invalid="ignore"):
        blocks = np.vecdot(a[:end].reshape(-1, DOT_BLOCK), b[:end].reshape(-1, DOT_BLOCK))
        return np.add.reduce(blocks) + np.vdot(a[end:], b[end:])


def equal_groups(indices: Array) -> tuple[Array, Array]:
    """The stable order that sorts indices, (n,) integers, and the starts of groups of equal ones, (n,) booleans.

    `indices[order[begins]]` has each index once, ascending.
    """
    bits = len(indices).bit_length()
    if indices.size and 0 <= indices.min() <= indices.max() < 1 << (63 - bits):
        # Sorting numbers of index and position is twice as fast as a stable argsort.
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
    """The sum of each group of rows (n, ...), by the result of `equal_groups`: (groups, ...), float32 for float16."""
    shared = ~(begins & np.append(begins[1:], True))  # rows of larger groups; single rows are only copied
    sums = widened(rows.take(order[begins], axis=0))
    if shared.any():
        several = widened(rows.take(order[shared], axis=0))
        sums[shared[begins]] = np.add.reduceat(several, np.flatnonzero(begins[shared]), axis=0)
    return sums


def add_rows(total: Array, indices: Array, rows: Array) -> None:
    """total[indices] += rows, in place, with repeated indices accumulated in order; float16 is rounded once.

    `total` is (size, ...), C-contiguous; `indices` are (n,), integers from -size to size - 1; `rows` are
    (n, *total.shape[1:]). Raises `ValueError` for other layouts and shapes, and `IndexError`.
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
    # np.add.at is fast on flat arrays only.
    positions = indices[:, np.newaxis] * width + np.arange(width)
    np.add.at(total.reshape(-1), positions.reshape(-1), rows.reshape(-1))
