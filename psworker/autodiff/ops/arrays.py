"""Creation, shape, order, dtype, joining and splitting of arrays. Selection of elements is in `indexing.py`.

`zeros`, `ones`, `one_hot`, `equal`, `argmax` and `argmin` return numpy arrays and have no derivative.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import ArrayLike, DTypeLike

from pswire.tensors.sums import add_over
from psworker.autodiff.ops.indexing import checked_ids, getitem, integer_ids
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Axis, Index, Tensor, TensorLike, as_array

__all__ = ["argmax", "argmin", "broadcast_to", "cast", "concatenate", "equal", "expand_dims", "flip", "one_hot", "ones"]
__all__ += ["pad", "reshape", "roll", "split", "squeeze", "stack", "tile", "transpose", "zeros"]


def zeros(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
    """An array of zeros, float32 by default."""
    return np.zeros(shape, dtype)


def ones(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
    """An array of ones, float32 by default."""
    return np.ones(shape, dtype)


def one_hot(ids: TensorLike, depth: int, dtype: DTypeLike = np.float32) -> Array:
    """One-hot rows (*ids.shape, depth) of class ids of any shape: 1 at the id, 0 elsewhere.

    Raises TypeError when the ids are not integers, ValueError when one is not in 0 ... depth - 1.
    """
    ids = checked_ids("one_hot: ids", ids, depth, ValueError)
    return np.equal(ids[..., np.newaxis], np.arange(depth)).astype(dtype)


def argmax(x: TensorLike, axis: int | None = None) -> Array:
    """Index of the largest element along an axis (the first among equals), or in the flattened array."""
    return np.asarray(np.argmax(as_array(x), axis=axis))


def argmin(x: TensorLike, axis: int | None = None) -> Array:
    """Index of the smallest element along an axis (the first among equals), or in the flattened array."""
    return np.asarray(np.argmin(as_array(x), axis=axis))


def equal(a: TensorLike, b: TensorLike) -> Array:
    """Elementwise equality of two broadcast arrays, as booleans; the mean is an accuracy."""
    return np.asarray(np.equal(as_array(a), as_array(b)))


@op
def reshape(x: Array, /, shape: int | Sequence[int]) -> Result:
    """The same elements in another shape; one size may be -1 and is inferred."""
    return np.reshape(x, shape), (lambda g: np.reshape(g, x.shape),)


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
