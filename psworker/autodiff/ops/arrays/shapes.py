"""The shape, the axes, the order along an axis and the dtype of an array, each op beside its derivative.

Arrays are made in `creation.py` and joined in `joining.py`; elements are selected in `selection/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import ArrayLike, DTypeLike

from pswire.tensors.sums import add_over
from psworker.autodiff.ops.selection.indexing import integer_ids
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Axis

__all__ = ["atleast_1d", "atleast_2d", "atleast_3d", "broadcast_to", "cast", "diff", "expand_dims", "flip", "moveaxis"]
__all__ += ["pad", "ravel", "reshape", "roll", "squeeze", "swapaxes", "tile", "transpose"]


@op
def reshape(x: Array, /, shape: int | Sequence[int]) -> Result:
    """The same elements in another shape; one size may be -1 and is inferred."""
    return np.reshape(x, shape), (lambda g: np.reshape(g, x.shape),)


@op
def ravel(x: Array, /) -> Result:
    """The same elements along one axis, in C order."""
    return np.ravel(x), (lambda g: np.reshape(g, np.shape(x)),)


@op
def atleast_1d(x: Array, /) -> Result:
    """X with one axis if it has none, () -> (1,)."""
    return np.atleast_1d(x), (lambda g: np.reshape(g, np.shape(x)),)


@op
def atleast_2d(x: Array, /) -> Result:
    """X with two axes if it has fewer, added at the front: (3,) -> (1, 3)."""
    return np.atleast_2d(x), (lambda g: np.reshape(g, np.shape(x)),)


@op
def atleast_3d(x: Array, /) -> Result:
    """X with three axes if it has fewer, as in numpy: (3,) -> (1, 3, 1), (2, 3) -> (2, 3, 1)."""
    return np.atleast_3d(x), (lambda g: np.reshape(g, np.shape(x)),)


@op
def squeeze(x: Array, /, axis: Axis = None) -> Result:
    """Remove axes of size 1: all, one or a tuple of them, (2, 1, 3) -> (2, 3); ValueError when one has another size."""
    return np.squeeze(x, axis), (lambda g: g.reshape(np.shape(x)),)


@op
def expand_dims(x: Array, /, axis: int | tuple[int, ...]) -> Result:
    """Insert axes of size 1 at positions `axis` of the result: (2, 3) -> (2, 1, 3) for axis 1."""
    return np.expand_dims(x, axis), (lambda g: g.reshape(np.shape(x)),)


@op
def broadcast_to(x: Array, /, shape: int | Sequence[int]) -> Result:
    """Broadcast to a shape by new leading axes and repeated axes of size 1, a read-only view; or ValueError."""
    return np.broadcast_to(x, shape), (lambda g: g,)


@op
def transpose(x: Array, /, axes: Sequence[int] | None = None) -> Result:
    """Permute the axes, or reverse them: (2, 3, 4) by axes (1, 0, 2) -> (3, 2, 4)."""
    order = None if axes is None else np.argsort([axis % np.ndim(x) for axis in axes])
    return np.transpose(x, axes), (lambda g: np.transpose(g, order),)


@op
def swapaxes(x: Array, /, axis1: int, axis2: int) -> Result:
    """Exchange two axes: (2, 3, 4) by 0 and -1 -> (4, 3, 2)."""
    return np.swapaxes(x, axis1, axis2), (lambda g: np.swapaxes(g, axis1, axis2),)


@op
def moveaxis(x: Array, /, source: int | Sequence[int], destination: int | Sequence[int]) -> Result:
    """Move axes to other positions, the rest keep their order: (2, 3, 4) from 0 to -1 -> (3, 4, 2)."""
    return np.moveaxis(x, source, destination), (lambda g: np.moveaxis(g, destination, source),)


@op
def flip(x: Array, /, axis: Axis = None) -> Result:
    """Reverse the order along an axis, several or all."""
    return np.flip(x, axis), (lambda g: np.flip(g, axis),)


@op
def roll(x: Array, /, shift: int | Sequence[int], axis: Axis = None) -> Result:
    """Move elements `shift` places along an axis, those beyond the end to the start: [1, 2, 3] by 1 -> [3, 1, 2].

    Several axes take one shift each, or the same. Without an axis, the flattened x is rolled and keeps its shape.
    Raises TypeError when a shift is not an integer.
    """
    shift = integer_ids("shift", shift).tolist()
    return np.roll(x, shift, axis), (lambda g: np.roll(g, np.negative(shift), axis),)


@op
def tile(x: Array, /, reps: int | Sequence[int]) -> Result:
    """Repeat x as a whole, `reps` times along each axis: [1, 2] by 2 -> [1, 2, 1, 2]; (2, 3) by (2, 1) -> (4, 3).

    x or reps gets leading ones if it has fewer axes. (To repeat each element, use `repeat`.) Raises ValueError when one
    is negative, TypeError when one is not an integer.
    """
    x, counts = np.asarray(x), tuple(integer_ids("reps", reps).reshape(-1).tolist())
    ndim = max(x.ndim, len(counts))
    sizes = (1,) * (ndim - x.ndim) + x.shape
    counts = (1,) * (ndim - len(counts)) + counts
    copies = tuple(size for pair in zip(counts, sizes, strict=True) for size in pair)
    return np.tile(x, counts), (lambda g: add_over(g.reshape(copies), tuple(range(0, 2 * ndim, 2))).reshape(x.shape),)


@op
def diff(x: Array, /, n: int = 1, axis: int = -1) -> Result:
    """The differences x[i + 1] - x[i] along an axis, `n` times: [1, 4, 9] -> [3, 5], and with n=2 -> [2].

    Raises ValueError when n is negative.
    """
    x = np.asarray(x)
    value = np.diff(x, n, axis)
    along = normalize_axis_index(axis, x.ndim)

    def gradient(g: Array) -> Array:
        if not g.size:
            return np.zeros(x.shape, g.dtype)
        for _ in range(n):
            wider = np.zeros((*g.shape[:along], g.shape[along] + 1, *g.shape[along + 1 :]), g.dtype)
            np.moveaxis(wider, along, 0)[1:] += np.moveaxis(g, along, 0)
            np.moveaxis(wider, along, 0)[:-1] -= np.moveaxis(g, along, 0)
            g = wider
        return g

    return value, (gradient,)


@op
def cast(x: Array, /, dtype: DTypeLike) -> Result:
    """Cast to another dtype, without a copy when it is the dtype of x; integers and booleans have no gradient."""
    value = np.asarray(x, dtype)
    return value, (lambda g: g,) if value.dtype.kind == "f" else ()


@op
def pad(x: Array, /, paddings: ArrayLike, value: float = 0) -> Result:
    """Pad x with `value`, (before, after) elements along each axis: (2, 3) by ((1, 0), (0, 2)) -> (3, 5).

    `paddings`: integers of shape (x.ndim, 2), one pair for all axes, or one number for both ends of all axes. Raises
    TypeError when they are not integers, ValueError when they have another shape or one is negative.
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
