"""Selection of elements by index, by ids or by a condition, each beside its derivative."""

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
    """x[index], for every index that numpy takes; an element selected twice gets the sum of its gradients."""
    x = np.asarray(x)
    if isinstance(index, (list, np.ndarray)) and np.asarray(index).dtype.kind in "iu":
        return x[index], (_slices_vjp(x.shape, 0, np.reshape(index, (1, -1))),)
    return x[index], (_elements_vjp(x.shape, index),)


@op
def take(x: Array, /, ids: ArrayLike, axis: int = 0) -> Result:
    """Slices of x along an axis, by integer ids; in the result's shape the ids' shape replaces the axis.

    x of shape (rows, n) and ids of shape (2, 3) -> (2, 3, n). Negative ids count from the end; a repeated id gets the
    sum of its gradients. The gradient is dense; for few rows of a large table use `embedding`.

    Raises TypeError when the ids are not integers, IndexError when one is out of range.
    """
    x = np.asarray(x)
    ids = _integers(ids)
    axis = normalize_axis_index(axis, x.ndim)
    return np.take(x, ids, axis=axis), (_slices_vjp(x.shape, axis, ids.reshape(1, -1)),)


@op
def gather(x: Array, /, ids: ArrayLike, batch_dims: int = 0) -> Result:
    """Slices of x along axis `batch_dims`, by integer ids that differ per batch element.

    x and ids have the leading `batch_dims` axes in common; the result has shape
    (*ids.shape, *x.shape[batch_dims + 1:]). Values x (batch, actions) and chosen actions ids (batch,), with
    batch_dims=1 -> (batch,). With batch_dims=0 it is `take` along axis 0. Negative and repeated ids are as in `take`.

    Raises TypeError when the ids are not integers, ValueError when they do not have the batch's shape, IndexError when
    one is out of range.
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
    rows = ids.reshape(math.prod(batch), math.prod(ids.shape[batch_dims:]))
    return x[index], (_slices_vjp(x.shape, batch_dims, rows),)


@op
def _where(a: Array, b: Array, /, condition: ArrayLike) -> Result:
    return np.where(condition, a, b), (lambda g: np.where(condition, g, 0), lambda g: np.where(condition, 0, g))


def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor:
    """Elements of a where the condition is true and of b elsewhere; all three broadcast.

    The condition, booleans such as `x.value > 0`, is a constant. Only the selected element gets a gradient.
    """
    return _where(a, b, condition)


def _slices_vjp(shape: tuple[int, ...], axis: int, ids: Array) -> Vjp:
    """The vjp of selecting slices of x, of this shape, by ids along an axis.

    `ids`: (batch, n), one row per position on the axes before it, or (1, n) for all positions.
    """
    size, slice_shape = shape[axis], shape[axis + 1 :]

    def gradient(g: Array) -> Array:
        total = np.zeros(shape, sum_dtype(g.dtype))
        batch = np.arange(math.prod(shape[:axis]))
        rows = batch[:, np.newaxis] * size + ids.astype(np.intp) % size
        add_rows(total.reshape(len(batch) * size, *slice_shape), rows.reshape(-1), g.reshape(rows.size, *slice_shape))
        return total

    return gradient


def _elements_vjp(shape: tuple[int, ...], index: Index) -> Vjp:
    """The vjp of x[index], x of this shape."""

    def gradient(g: Array) -> Array:
        if _selects_each_once(index):
            total = np.zeros(shape, g.dtype)
            total[index] = g
        else:
            total = np.zeros(shape, sum_dtype(g.dtype))
            np.add.at(total, index, g)
        return total

    return gradient


def _selects_each_once(index: Index) -> bool:
    """Whether an index cannot repeat an element: integers, slices, ..., None and masks (np.add.at is far slower)."""
    parts = index if isinstance(index, tuple) else (index,)
    once = (int, np.integer, slice, EllipsisType, type(None))
    return all(isinstance(part, once) or np.asarray(part).dtype == bool for part in parts)


def _integers(ids: ArrayLike) -> Array:
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"ids must be integers, but they are {ids.dtype}")
    return ids
