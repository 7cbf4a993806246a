"""Selection of elements by index, by ids or by a condition, and of rows of tables, each beside its derivative."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import EllipsisType

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import ArrayLike

from pswire.tensors.sums import add_over, add_rows, equal_groups, sum_dtype, sum_groups
from pswire.tensors.values import IndexedSlices
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Index, Tensor, TensorLike, Vjp, as_array

__all__ = ["embedding", "gather", "getitem", "repeat", "take", "take_along_axis", "where"]


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
    ids = integer_ids("ids", ids)
    axis = normalize_axis_index(axis, x.ndim)
    return np.take(x, ids, axis=axis), (_slices_vjp(x.shape, axis, ids.reshape(1, -1)),)


@op
def gather(x: Array, /, ids: ArrayLike, batch_dims: int = 0) -> Result:
    """Slices of x along axis `batch_dims`, by integer ids that differ per batch element; otherwise as `take`.

    x and ids have the leading `batch_dims` axes in common -> (*ids.shape, *x.shape[batch_dims + 1:]): values (batch,
    actions) and chosen actions (batch,), with batch_dims=1 -> (batch,).

    Raises TypeError when the ids are not integers, ValueError when they do not have the batch's shape, IndexError when
    one is out of range.
    """
    x = np.asarray(x)
    ids = integer_ids("ids", ids)
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
def take_along_axis(x: Array, /, indices: ArrayLike, axis: int = -1) -> Result:
    """Elements of x along an axis, by integer indices that differ per position on the other axes.

    The indices, as `argsort` returns them, have the axes of x; on the others the same sizes. x of shape (2, 5) and
    indices (2, 3) with axis 1 -> (2, 3). Negative indices count from the end; a repeated one gets the sum of its
    gradients.

    Raises TypeError when the indices are not integers, ValueError when their shape does not fit, IndexError when one is
    out of range.
    """
    x = np.asarray(x)
    indices = integer_ids("indices", indices)
    axis = normalize_axis_index(axis, x.ndim)
    others = x.shape[:axis] + x.shape[axis + 1 :]
    if indices.shape[:axis] + indices.shape[axis + 1 :] != others or indices.ndim != x.ndim:
        raise ValueError(f"indices must have the shape of x but for axis {axis}, but their shape is {indices.shape}")
    rows = np.moveaxis(indices, axis, -1).reshape(math.prod(others), indices.shape[axis])
    select = _slices_vjp((*others, x.shape[axis]), x.ndim - 1, rows)

    def gradient(g: Array) -> Array:
        return np.moveaxis(select(np.moveaxis(g, axis, -1)), -1, axis)

    return np.take_along_axis(x, indices, axis), (gradient,)


@op
def repeat(x: Array, /, repeats: int | ArrayLike, axis: int | None = None) -> Result:
    """Each element or slice repeated: [1, 2] by 3 -> [1, 1, 1, 2, 2, 2], by [0, 2] -> [2, 2].

    `repeats`: one integer, or one for each slice along the axis; x is flattened if the axis is None. (To repeat the
    whole array, use `tile`.) Raises ValueError when one is negative or their number does not fit, TypeError when they
    are not integers.
    """
    x = np.asarray(x)
    elements, along = (x.reshape(-1), 0) if axis is None else (x, normalize_axis_index(axis, x.ndim))
    repeats = integer_ids("repeats", repeats)
    value = np.repeat(elements, repeats, axis=along)
    if repeats.size == 1:
        copies = (*elements.shape[: along + 1], repeats.item(), *elements.shape[along + 1 :])
        return value, (lambda g: add_over(g.reshape(copies), along + 1).reshape(x.shape),)
    ids = np.repeat(np.arange(elements.shape[along]), repeats)
    select = _slices_vjp(elements.shape, along, ids.reshape(1, -1))
    return value, (lambda g: select(g).reshape(x.shape),)


@op
def _where(a: Array, b: Array, /, condition: ArrayLike) -> Result:
    return np.where(condition, a, b), (lambda g: np.where(condition, g, 0), lambda g: np.where(condition, 0, g))


def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor:
    """Elements of a where the condition is true and of b elsewhere; all three broadcast.

    The condition, booleans such as `x > 0`, is a constant. Only the selected element gets a gradient.
    """
    return _where(a, b, condition)


def _slices_vjp(shape: tuple[int, ...], axis: int, ids: Array) -> Callable[[Array], Array]:
    """The vjp of selecting slices along an axis by ids: (positions before it, n), or (1, n) for all positions."""
    size, slice_shape = shape[axis], shape[axis + 1 :]

    def gradient(g: Array) -> Array:
        total = np.zeros(shape, sum_dtype(g.dtype))
        batch = np.arange(math.prod(shape[:axis]))
        rows = batch[:, np.newaxis] * size + ids.astype(np.intp) % size
        add_rows(total.reshape(len(batch) * size, *slice_shape), rows.reshape(-1), g.reshape(rows.size, *slice_shape))
        return total

    return gradient


def _elements_vjp(shape: tuple[int, ...], index: Index) -> Vjp:
    """The vjp of x[index], x of this shape; integers, slices, ..., None and masks select each element once."""

    def gradient(g: Array) -> Array:
        once = (int, np.integer, slice, EllipsisType, type(None))
        parts = index if isinstance(index, tuple) else (index,)
        total = np.zeros(shape, sum_dtype(g.dtype))
        if all(isinstance(part, once) or np.asarray(part).dtype == bool for part in parts):
            total[index] = g
        else:  # far slower
            np.add.at(total, index, g)
        return total

    return gradient


class RowSource:
    """Mixin of a `Tensor` without an array, whose `value` raises: its rows are remote, and `embedding` fetches them."""

    __slots__ = ()

    def fetch(self, indices: Array) -> Array:
        """Current rows (n, *shape[1:]) at `indices`, (n,) int64, in range, distinct and ascending."""
        raise NotImplementedError


def embedding(table: TensorLike, ids: TensorLike) -> Tensor:
    """Rows table[ids]: a table (rows, ...) and integer ids of any shape -> (*ids.shape, ...).

    The gradient is `IndexedSlices` with one row per id; for a `psworker.Table`, from which distinct rows are fetched,
    with one row per distinct id, ascending. Raises TypeError when ids are not integers, IndexError when one is not in
    0 ... rows - 1, before anything is fetched.
    """
    if not (isinstance(table, Tensor) and isinstance(table, RowSource)):
        return _embedding(table, ids)
    shape = table.shape
    numbers = checked_ids(f"embedding: ids for {table}", ids, shape[0])
    order, begins = equal_groups(numbers.reshape(-1))
    distinct = numbers.reshape(-1)[order[begins]]
    places = np.empty(numbers.size, np.intp)  # of each id among the distinct ones
    places[order] = np.cumsum(begins) - 1

    def gradient(g: Array) -> IndexedSlices:
        sums = sum_groups(g.reshape(numbers.size, *shape[1:]), order, begins)
        return IndexedSlices(sums, distinct, shape, check_range=False)

    rows = Tensor(table.fetch(distinct))
    rows._node = table._node  # in the graph, the rows are the table
    return _fetched_rows(rows, places.reshape(numbers.shape), gradient)


@op
def _embedding(table: Array, /, ids: TensorLike) -> Result:
    if np.ndim(table) == 0:
        raise ValueError("a table must have at least one axis")
    numbers, shape = checked_ids("ids", ids, len(table)), table.shape
    flat = numbers.reshape(-1)
    return np.take(table, numbers, axis=0), (
        lambda g: IndexedSlices(g.reshape(len(flat), *shape[1:]), flat, shape, check_range=False),
    )


@op
def _fetched_rows(rows: Array, /, places: Array, gradient: Vjp) -> Result:
    return np.take(rows, places, axis=0), (gradient,)


def integer_ids(name: str, ids: TensorLike) -> Array:
    """The ids as an array; TypeError unless they are integers. Without elements it may be of any dtype, as [] is."""
    ids = as_array(ids)
    if ids.dtype.kind in "iu":
        return ids
    if ids.size:
        hint = ": np.unique(words, return_inverse=True) numbers words" if ids.dtype.kind in "USOT" else ""
        raise TypeError(f"{name} must be integers, but they are {ids.dtype}{hint}")
    return ids.astype(np.int64)


def checked_ids(name: str, ids: TensorLike, size: int, error: type[Exception] = IndexError) -> Array:
    """The ids as int64; TypeError unless they are integers, `error` unless all are in 0 ... size - 1."""
    ids = integer_ids(name, ids)
    if ids.size and not 0 <= ids.min() <= ids.max() < size:
        raise error(f"{name} must be in 0 ... {size - 1}, but they span {ids.min()} ... {ids.max()}")
    return ids.astype(np.int64, copy=False)
