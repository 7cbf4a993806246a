"""Shape, order and choice of elements, beside their derivatives; and plain array functions without one.

The plain functions (`zeros`, `ones`, `one_hot`, `argmax`, `equal`) take tensors or arrays and return numpy arrays.
Only numpy and the tape may be imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType

import numpy as np
from numpy.typing import DTypeLike

from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Index, TensorLike, as_array

__all__ = ["argmax", "equal", "getitem", "one_hot", "ones", "reshape", "transpose", "zeros"]


@op
def reshape(x: Array, /, shape: int | Sequence[int]) -> Result:
    """The same elements in another shape; one size may be -1, to be worked out."""
    return np.reshape(x, shape), (lambda g: np.reshape(g, x.shape),)


@op
def transpose(x: Array, /, axes: Sequence[int] | None = None) -> Result:
    """The axes in another order, or reversed."""
    order = None if axes is None else np.argsort([axis % np.ndim(x) for axis in axes])
    return np.transpose(x, axes), (lambda g: np.transpose(g, order),)


@op
def getitem(x: Array, /, index: Index) -> Result:
    """x[index], for every index that numpy knows; what an integer array takes several times gets all its gradients."""
    x = np.asarray(x)

    def gradient(g: Array) -> Array:
        spread = np.zeros(x.shape, g.dtype)
        if _takes_each_once(index):
            spread[index] = g
        else:
            np.add.at(spread, index, g)
        return spread

    return x[index], (gradient,)


def _takes_each_once(index: Index) -> bool:
    """Whether an index can take no element twice: numbers, slices, ..., None and masks; np.add.at is slower by far."""
    parts = index if isinstance(index, tuple) else (index,)
    once = (int, np.integer, slice, EllipsisType, type(None))
    return all(isinstance(part, once) or np.asarray(part).dtype == bool for part in parts)


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


def equal(a: TensorLike, b: TensorLike) -> Array:
    """Where two arrays, broadcast, have the same value: booleans, whose `mean` is the share that agrees."""
    return np.asarray(np.equal(as_array(a), as_array(b)))


def check_class_ids(name: str, ids: Array, classes: int) -> None:
    """Raises TypeError unless the ids are integers, ValueError unless each is in 0 ... classes - 1."""
    if ids.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integer class ids, but they are {ids.dtype}")
    if ids.size and not 0 <= ids.min() <= ids.max() < classes:
        raise ValueError(f"{name} must be in 0 ... {classes - 1}, but they span {ids.min()} ... {ids.max()}")
