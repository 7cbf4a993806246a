"""Joining and splitting of arrays along an axis, and grids, each op beside its derivative."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Literal

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from psworker.autodiff.ops.arrays.shapes import atleast_1d, atleast_2d, broadcast_to, reshape
from psworker.autodiff.ops.selection.indexing import getitem
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Index, Tensor, TensorLike, as_array

__all__ = ["concatenate", "hstack", "meshgrid", "split", "stack", "vstack"]


@op
def _concatenate(*tensors: Array, axis: int) -> Result:
    value = np.concatenate(tensors, axis=axis)
    before = (slice(None),) * (axis % value.ndim)
    ends = accumulate((x.shape[axis] for x in tensors), initial=0)
    return value, [itemgetter((*before, slice(*piece))) for piece in pairwise(ends)]


def concatenate(tensors: Iterable[TensorLike], axis: int = 0) -> Tensor:
    """Join tensors along an axis: (2, 3) and (4, 3) -> (6, 3) for axis 0; ValueError if none, or other sizes differ."""
    return _concatenate(*tensors, axis=axis)  # type: ignore[arg-type]


@op
def _stack(*tensors: Array, axis: int) -> Result:
    dtype = np.result_type(*tensors) if tensors else None  # np.stack would convert a Python number to float64
    value = np.stack(tensors, axis=axis, dtype=dtype)
    before = (slice(None),) * (axis % value.ndim)
    return value, [itemgetter((*before, number)) for number in range(len(tensors))]


def stack(tensors: Iterable[TensorLike], axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new axis: four of (2, 3) -> (4, 2, 3); ValueError if none, or shapes differ."""
    return _stack(*tensors, axis=axis)  # type: ignore[arg-type]


def vstack(tensors: Iterable[TensorLike]) -> Tensor:
    """Join rows along axis 0; one axis counts as a row: (3,) and (2, 3) -> (3, 3). Errors as `concatenate`."""
    return concatenate([atleast_2d(x) if isinstance(x, Tensor) else np.atleast_2d(x) for x in tensors])


def hstack(tensors: Iterable[TensorLike]) -> Tensor:
    """Join along axis 1, or along axis 0 if they have one axis: (2, 1) and (2, 3) -> (2, 4). As `concatenate`."""
    parts = [atleast_1d(x) if isinstance(x, Tensor) else np.atleast_1d(x) for x in tensors]
    return concatenate(parts, axis=1 if parts and parts[0].ndim > 1 else 0)


def split(x: TensorLike, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Split x along an axis into equal sections, or into sections of given sizes (np.split takes end indices).

    (6, 3) -> two of (3, 3) for sections=2; (1, 3) and (5, 3) for sections=[1, 5]. Raises ValueError when the sizes do
    not add up.
    """
    shape = as_array(x).shape
    axis = normalize_axis_index(axis, len(shape), "split")
    size = shape[axis]
    if isinstance(sections, (int, np.integer)):
        if sections < 1 or size % sections:
            raise ValueError(
                f"split: axis {axis} of x, of size {size}, has no {sections} equal sections; name the sizes"
            )
        sections = [size // int(sections)] * int(sections)
    elif sum(sections) != size or any(section < 0 for section in sections):
        raise ValueError(f"split: axis {axis} of x, of size {size}, has no sections of sizes {list(sections)}")
    before = (slice(None),) * axis
    indices: list[Index] = [(*before, slice(*piece)) for piece in pairwise(accumulate(sections, initial=0))]
    return [getitem(x, index) for index in indices]


def meshgrid(*xs: TensorLike, indexing: Literal["xy", "ij"] = "xy") -> list[Tensor]:
    """The coordinates of a grid from those along each axis, all of the same shape, as read-only views.

    (3,) and (2,) -> two of (2, 3), or with `indexing="ij"` two of (3, 2), where axis n has the places of the n-th
    argument. Raises ValueError for an argument of several axes, or another `indexing`.
    """
    arrays = [as_array(x) for x in xs]
    if any(x.ndim > 1 for x in arrays):
        raise ValueError(f"meshgrid: arguments must have one axis, but their shapes are {[x.shape for x in arrays]}")
    if indexing not in ("xy", "ij"):
        raise ValueError(f'meshgrid: indexing must be "xy" or "ij", but it is {indexing!r}')
    axes = list(range(len(xs)))
    if indexing == "xy" and len(xs) > 1:
        axes[:2] = 1, 0
    shape = [arrays[axes.index(axis)].size for axis in range(len(xs))]
    return [
        broadcast_to(reshape(x, [-1 if place == axis else 1 for place in range(len(xs))]), shape)
        for x, axis in zip(xs, axes, strict=True)
    ]
