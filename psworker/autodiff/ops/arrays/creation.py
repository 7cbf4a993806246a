"""New arrays: numpy arrays, float32 by default, without a derivative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from psworker.autodiff.ops.selection.indexing import checked_ids
from psworker.autodiff.tensor import Array, TensorLike, as_array

__all__ = ["arange", "eye", "full", "full_like", "linspace", "one_hot", "ones", "ones_like", "zeros", "zeros_like"]


def zeros(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
    """An array of zeros, float32 by default."""
    return np.zeros(shape, dtype)


def ones(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
    """An array of ones, float32 by default."""
    return np.ones(shape, dtype)


def full(shape: int | Sequence[int], value: float, dtype: DTypeLike = np.float32) -> Array:
    """An array of one number, float32 by default."""
    return np.full(shape, value, dtype)


def zeros_like(x: TensorLike, dtype: DTypeLike | None = None) -> Array:
    """An array of zeros of the shape of x, and by default of its dtype."""
    return np.zeros_like(as_array(x), dtype)


def ones_like(x: TensorLike, dtype: DTypeLike | None = None) -> Array:
    """An array of ones of the shape of x, and by default of its dtype."""
    return np.ones_like(as_array(x), dtype)


def full_like(x: TensorLike, value: float, dtype: DTypeLike | None = None) -> Array:
    """An array of one number, of the shape of x, and by default of its dtype."""
    return np.full_like(as_array(x), value, dtype)


def eye(n: int, columns: int | None = None, k: int = 0, dtype: DTypeLike = np.float32) -> Array:
    """A matrix (n, columns), by default (n, n), of ones on diagonal k, above the main one if positive, and zeros."""
    return np.eye(n, columns, k, dtype)


def linspace(start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: DTypeLike = np.float32) -> Array:
    """`num` numbers at equal distances from start to stop, without stop itself unless `endpoint`; float32 by default.

    Computed in float64 and rounded once.
    """
    return np.linspace(start, stop, num, endpoint, dtype=dtype)


def arange(start: float, stop: float | None = None, step: float = 1, dtype: DTypeLike | None = None) -> Array:
    """Numbers at a distance of `step` from start, by default 0, up to but not including stop: 3 -> [0, 1, 2].

    By default int64 if all arguments are integers, else float32. For steps that are not integers use `linspace`, whose
    number of elements does not depend on rounding.
    """
    first, end = (0, start) if stop is None else (start, stop)
    values = np.arange(first, end, step)
    if dtype is None:
        dtype = np.float32 if values.dtype.kind == "f" else values.dtype
    return values.astype(dtype, copy=False)


def one_hot(ids: TensorLike, depth: int, dtype: DTypeLike = np.float32) -> Array:
    """One-hot rows (*ids.shape, depth) of class ids of any shape: 1 at the id, 0 elsewhere.

    Raises TypeError when the ids are not integers, ValueError when one is not in 0 ... depth - 1.
    """
    ids = checked_ids("one_hot: ids", ids, depth, ValueError)
    return np.equal(ids[..., np.newaxis], np.arange(depth)).astype(dtype)
