"""The choice of elements, by index, by ids or by a condition, beside the way of each gradient back to its element.

Only numpy, `pswire.tensors.sums` and the tape may be imported here.
"""

from __future__ import annotations

import math
from types import EllipsisType

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import ArrayLike

from pswire.tensors.sums import add_rows, sum_dtype
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Index, Tensor, TensorLike, Vjp

__all__ = ["gather", "getitem", "take", "where"]


@op
def getitem(x: Array, /, index: Index) -> Result:
    """x[index] and its shape, for every index of numpy; what an array of ids takes twice gets both of its gradients."""
    x = np.asarray(x)
    if isinstance(index, (list, np.ndarray)) and np.asarray(index).dtype.kind in "iu":
        return x[index], (_adding(x.shape, 0, np.reshape(index, (1, -1))),)
    return x[index], (_scattering(x.shape, index),)


@op
def take(x: Array, /, ids: ArrayLike, axis: int = 0) -> Result:
    """The slices of x that integer ids number along one axis: the ids' shape stands in the result where the axis was.

    x of shape (rows, n) and ids of shape (2, 3) give (2, 3, n). A negative id counts from the end; one that comes
    several times gets the sum of its gradients. The gradient has the shape of x: for few rows of a large table there
    is `embedding`.

    Raises TypeError when the ids are not integers, IndexError when one is outside.
    """
    x = np.asarray(x)
    ids = _integers(ids)
    axis = normalize_axis_index(axis, x.ndim)
    return np.take(x, ids, axis=axis), (_adding(x.shape, axis, ids.reshape(1, -1)),)


@op
def gather(x: Array, /, ids: ArrayLike, batch_dims: int = 0) -> Result:
    """The slices of x that integer ids number along axis `batch_dims`, each batch with ids of its own.

    The leading `batch_dims` axes are those of a batch, and x and ids have them in common. So action values x of shape
    (batch, actions) and the actions taken, of shape (batch,), with batch_dims=1 give the values of those actions, of
    shape (batch,). In general the result has the shape (*ids.shape, *x.shape[batch_dims + 1:]). Without a batch this
    is `take` along axis 0. Negative and repeated ids are as in `take`.

    Raises TypeError when the ids are not integers, ValueError when they do not have the batch's shape, IndexError when
    one is outside.
    """
    x = np.asarray(x)
    ids = _integers(ids)
    if not 0 <= batch_dims < x.ndim:
        raise ValueError(f"batch_dims must be in 0 ... {x.ndim - 1}, so that x keeps an axis to gather from")
    batch = x.shape[:batch_dims]
    if ids.shape[:batch_dims] != batch:
        raise ValueError(f"ids must begin with the batch's shape {batch}, but their shape is {ids.shape}")
    within = (1,) * (ids.ndim - batch_dims)
    grid: tuple[Array, ...] = np.indices(batch, sparse=True)
    index = (*(places.reshape(places.shape + within) for places in grid), ids)
    return x[index], (_adding(x.shape, batch_dims, ids.reshape(math.prod(batch), math.prod(ids.shape[batch_dims:]))),)


@op
def _where(a: Array, b: Array, /, condition: ArrayLike) -> Result:
    return np.where(condition, a, b), (lambda g: np.where(condition, g, 0), lambda g: np.where(condition, 0, g))


def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor:
    """The elements of a where the condition holds and those of b elsewhere, all three broadcast.

    The condition, booleans such as `x.value > 0`, is a constant. Only the element that was chosen gets a gradient.
    """
    return _where(a, b, condition)


def _adding(shape: tuple[int, ...], axis: int, ids: Array) -> Vjp:
    """The gradient of the slices of x, of this shape, that ids number along an axis: each added to where it came from.

    `ids`: (batch, n), a row for each place on the axes before, or (1, n) for all places alike.
    """
    size, slice_shape = shape[axis], shape[axis + 1 :]

    def gradient(g: Array) -> Array:
        total = np.zeros(shape, sum_dtype(g.dtype))
        batch = np.arange(math.prod(shape[:axis]))
        rows = batch[:, np.newaxis] * size + ids.astype(np.intp) % size
        add_rows(total.reshape(len(batch) * size, *slice_shape), rows.reshape(-1), g.reshape(rows.size, *slice_shape))
        return total

    return gradient


def _scattering(shape: tuple[int, ...], index: Index) -> Vjp:
    """The gradient of x[index], x of this shape: each element of g at the place it came from, zeros elsewhere."""

    def gradient(g: Array) -> Array:
        if _takes_each_once(index):
            total = np.zeros(shape, g.dtype)
            total[index] = g
        else:
            total = np.zeros(shape, sum_dtype(g.dtype))
            np.add.at(total, index, g)
        return total

    return gradient


def _takes_each_once(index: Index) -> bool:
    """Whether an index can take no element twice: numbers, slices, ..., None and masks; np.add.at is slower by far."""
    parts = index if isinstance(index, tuple) else (index,)
    once = (int, np.integer, slice, EllipsisType, type(None))
    return all(isinstance(part, once) or np.asarray(part).dtype == bool for part in parts)


def _integers(ids: ArrayLike) -> Array:
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"ids must be integers, but they are {ids.dtype}")
    return ids
