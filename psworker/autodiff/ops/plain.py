"""Array functions without a derivative: arrays made anew, comparisons, positions of the largest and the smallest.

They take tensors or arrays and return numpy arrays, through which no gradient flows. Only numpy and the tensor may be
imported here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from psworker.autodiff.tensor import Array, TensorLike, as_array

__all__ = ["argmax", "argmin", "equal", "one_hot", "ones", "zeros"]


def zeros(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
    """An array of zeros, float32 unless told otherwise."""
    return np.zeros(shape, dtype)


def ones(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
    """An array of ones, float32 unless told otherwise."""
    return np.ones(shape, dtype)


def one_hot(ids: TensorLike, depth: int, dtype: DTypeLike = np.float32) -> Array:
    """Class ids of any shape -> shape (*ids.shape, depth), 1 at the id and 0 elsewhere.

    Raises TypeError when the ids are not integers, ValueError when one is not in 0 ... depth - 1.
    """
    ids = as_array(ids)
    check_class_ids("one_hot: ids", ids, depth)
    hot: Array = ids[..., np.newaxis] == np.arange(depth)
    return hot.astype(dtype)


def argmax(x: TensorLike, axis: int | None = None) -> Array:
    """The index of the largest element along an axis (the first of equals), or in the flattened array."""
    return np.asarray(np.argmax(as_array(x), axis=axis))


def argmin(x: TensorLike, axis: int | None = None) -> Array:
    """The index of the smallest element along an axis (the first of equals), or in the flattened array."""
    return np.asarray(np.argmin(as_array(x), axis=axis))


def equal(a: TensorLike, b: TensorLike) -> Array:
    """Where two arrays, broadcast, have the same value: booleans, whose `mean` is the share that agrees."""
    return np.asarray(np.equal(as_array(a), as_array(b)))


def check_class_ids(name: str, ids: Array, classes: int) -> None:
    """Raises TypeError unless the ids are integers, ValueError unless each is in 0 ... classes - 1."""
    if ids.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integer class ids, but they are {ids.dtype}")
    if ids.size and not 0 <= ids.min() <= ids.max() < classes:
        raise ValueError(f"{name} must be in 0 ... {classes - 1}, but they span {ids.min()} ... {ids.max()}")
