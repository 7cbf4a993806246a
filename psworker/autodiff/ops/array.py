"""Shape, order and dtype of arrays, joining and cutting them, beside the way of each gradient back.

What chooses elements is in `indexing.py`; what has no derivative, in `plain.py`. Only numpy, the tape and those may be
imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import ArrayLike, DTypeLike

from psworker.autodiff.ops.indexing import getitem
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Axis, Index, Tensor, TensorLike, as_array

__all__ = [
    "broadcast_to",
    "cast",
    "concatenate",
    "expand_dims",
    "pad",
    "reshape",
    "split",
    "squeeze",
    "stack",
    "transpose",
]


@op
def reshape(x: Array, /, shape: int | Sequence[int]) -> Result:
    """The same elements in the given shape, of which one size may be -1, to be worked out."""
    return np.reshape(x, shape), (lambda g: np.reshape(g, x.shape),)


@op
def squeeze(x: Array, /, axis: Axis = None) -> Result:
    """Without the axes of size 1, all or the one or the tuple of them that is named: of shape (2, 1, 3) comes (2, 3).

    Raises ValueError when an axis that is named has another size.
    """
    x = np.asarray(x)
    return np.squeeze(x, axis), (lambda g: g.reshape(x.shape),)


@op
def expand_dims(x: Array, /, axis: int | tuple[int, ...]) -> Result:
    """With a new axis of size 1, or a tuple of them, at `axis` in the result: of (2, 3) comes (2, 1, 3) for 1."""
    x = np.asarray(x)
    return np.expand_dims(x, axis), (lambda g: g.reshape(x.shape),)


@op
def broadcast_to(x: Array, /, shape: int | Sequence[int]) -> Result:
    """The elements in the given shape, repeated along new leading axes and axes of size 1: a view, not to be written.

    Raises ValueError when another size of x than 1 would have to change.
    """
    try:
        stretched = np.broadcast_to(x, shape)
    except ValueError as error:
        raise ValueError("from the last axis on, each size of x must be 1 or that of the shape") from error
    return stretched, (lambda g: g,)


@op
def transpose(x: Array, /, axes: Sequence[int] | None = None) -> Result:
    """The axes in another order, or reversed: of shape (2, 3, 4), by axes (1, 0, 2), comes (3, 2, 4)."""
    order = None if axes is None else np.argsort([axis % np.ndim(x) for axis in axes])
    return np.transpose(x, axes), (lambda g: np.transpose(g, order),)


@op
def cast(x: Array, /, dtype: DTypeLike) -> Result:
    """The same elements, of the shape of x, in another dtype, shared where it is theirs; the gradient is cast back.

    Integers and booleans have no gradient: what is cast to them is a constant.
    """
    value = np.asarray(x, dtype)
    return value, (lambda g: g,) if value.dtype.kind == "f" else ()


@op
def pad(x: Array, /, paddings: ArrayLike, value: float = 0) -> Result:
    """The elements of x with `value` around them, (before, after) elements along each axis.

    `paddings`: integers of shape (x.ndim, 2); one pair (before, after) stands for every axis, one number for both ends
    of every axis. Of shape (2, 3), padded with ((1, 0), (0, 2)), comes (3, 5).

    Raises TypeError when the paddings are not integers, ValueError when they have another shape or one is negative.
    """
    x, paddings = np.asarray(x), np.asarray(paddings)
    if paddings.dtype.kind not in "iu":
        raise TypeError(f"paddings must be integers, but they are {paddings.dtype}")
    if paddings.shape not in ((), (2,), (x.ndim, 2)):
        raise ValueError(f"paddings must have shape ({x.ndim}, 2), (2,) or (), but their shape is {paddings.shape}")
    if np.any(paddings < 0):
        raise ValueError("paddings must not be negative; take a slice to make x smaller")
    pairs: list[list[int]] = np.broadcast_to(paddings, (x.ndim, 2)).tolist()
    inner = tuple(slice(before, before + size) for size, (before, _) in zip(x.shape, pairs, strict=True))
    padded = np.full([part.stop + after for part, (_, after) in zip(inner, pairs, strict=True)], value, x.dtype)
    padded[inner] = x
    return padded, (itemgetter(inner),)


@op
def _concatenate(*tensors: Array, axis: int) -> Result:
    value = np.concatenate(tensors, axis=axis)
    before = (slice(None),) * (axis % value.ndim)
    ends = accumulate((x.shape[axis] for x in tensors), initial=0)
    return value, [itemgetter((*before, slice(*piece))) for piece in pairwise(ends)]


def concatenate(tensors: Iterable[TensorLike], axis: int = 0) -> Tensor:
    """The tensors one after another along an axis that they have, of equal sizes along all others.

    Shapes (2, 3) and (4, 3) give (6, 3) along axis 0. Each gets its piece of the gradient. Raises ValueError when
    there are none, or the sizes differ.
    """
    return _concatenate(*tensors, axis=axis)  # type: ignore[arg-type]


@op
def _stack(*tensors: Array, axis: int) -> Result:
    if not tensors:
        raise ValueError("there must be at least one tensor to stack")
    shapes = {np.shape(x) for x in tensors}
    if len(shapes) > 1:
        raise ValueError(f"all tensors must have one shape, but they have {', '.join(map(str, sorted(shapes)))}")
    dtype = np.result_type(*tensors)  # given, as numpy's stack takes a Python number for float64
    value = np.stack(tensors, axis=axis, dtype=dtype)
    before = (slice(None),) * (axis % value.ndim)
    return value, [itemgetter((*before, number)) for number in range(len(tensors))]


def stack(tensors: Iterable[TensorLike], axis: int = 0) -> Tensor:
    """The tensors, all of one shape, side by side along a new axis that stands at `axis` in the result.

    Four of shape (2, 3) give (4, 2, 3) along axis 0. Each gets its slice of the gradient. Raises ValueError when there
    are none, or the shapes differ.
    """
    return _stack(*tensors, axis=axis)  # type: ignore[arg-type]


def split(x: TensorLike, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """The sections of x along one axis: so many equal ones, or those of the sizes given (numpy's split wants ends).

    x of shape (6, 3) gives two of shape (3, 3) for sections=2, and (1, 3) and (5, 3) for sections=[1, 5]. Raises
    ValueError when it does not come out even.
    """
    shape = as_array(x).shape
    axis = normalize_axis_index(axis, len(shape), "split")
    size = shape[axis]
    if isinstance(sections, (int, np.integer)):
        if sections < 1 or size % sections:
            raise ValueError(
                f"split: axis {axis} of x, of size {size}, has no {sections} equal sections; name the sizes"
            )
        sizes = [size // int(sections)] * int(sections)
    else:
        sizes = [int(s) for s in sections]
        if sum(sizes) != size or any(s < 0 for s in sizes):
            raise ValueError(f"split: axis {axis} of x, of size {size}, has no sections of sizes {sizes}")
    before = (slice(None),) * axis
    indices: list[Index] = [(*before, slice(*piece)) for piece in pairwise(accumulate(sizes, initial=0))]
    return [getitem(x, index) for index in indices]
