"""Products of matrices and vectors, and sums of products over chosen axes, each beside its derivatives.

Sums over axes named by letters are in `einsum.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from pswire.tensors.sums import add_over
from pswire.tensors.sums import dot as sum_of_products
from psworker.autodiff.tape import Result, float16_in_float32, op
from psworker.autodiff.tensor import Array

__all__ = ["cross", "dot", "inner", "kron", "matmul", "outer", "tensordot", "vdot"]


@op
@float16_in_float32
def matmul(a: Array, b: Array, /) -> Result:
    """The matrix product over the last two axes, (..., n, k) @ (..., k, m) -> (..., n, m); leading axes broadcast.

    A 1-d operand is a row on the left and a column on the right; its added axis is removed from the result.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError("both operands must have at least one axis")
    inner = b.shape[0 if b.ndim == 1 else -2]
    if a.shape[-1] != inner:
        raise ValueError(f"the last axis of a ({a.shape[-1]}) must be as long as the first matrix axis of b ({inner})")
    if a.ndim == b.ndim == 2:
        return a @ b, (lambda g: _times_transposed(g, b), lambda g: a.T @ g)
    if b.ndim <= 2:
        return _flattened_product(a, b)
    if a.ndim == 1:
        return np.matmul(a, b), (
            lambda g: (g[..., np.newaxis, :] @ b.swapaxes(-1, -2))[..., 0, :],
            lambda g: a[:, np.newaxis] @ g[..., np.newaxis, :],
        )
    return np.matmul(a, b), (lambda g: g @ b.swapaxes(-1, -2), lambda g: a.swapaxes(-1, -2) @ g)


def _flattened_product(a: Array, b: Array) -> Result:
    """(..., k) @ (k, m) or (k,) as one product of matrices; np.matmul makes one per leading index of a."""
    rows, columns = a.reshape(math.prod(a.shape[:-1]), len(b)), b.reshape(len(b), math.prod(b.shape[1:]))
    shape = len(rows), columns.shape[1]
    return (rows @ columns).reshape(a.shape[:-1] + b.shape[1:]), (
        lambda g: _times_transposed(g.reshape(shape), columns).reshape(a.shape),
        lambda g: (rows.T @ g.reshape(shape)).reshape(b.shape),
    )


def _times_transposed(g: Array, b: Array) -> Array:
    """The product g @ b.T; for a smaller g, BLAS is up to a third faster on the transposed product."""
    return g @ b.T if len(g) >= b.shape[1] else np.ascontiguousarray((b @ g.T).T)


@op
@float16_in_float32
def tensordot(a: Array, b: Array, /, axes: int | Sequence[int | Sequence[int]] = 2) -> Result:
    """The sum of products over axes: the last n of a and the first n of b, or pairs of axes ([...], [...]).

    (2, 3, 4) and (3, 4, 5) by 2 -> (2, 5); (2, 3) and (4, 3) by (1, 1) -> (2, 4). First the other axes of a, then
    those of b. Raises ValueError when the sizes of a pair of axes differ, or the numbers of axes.
    """
    a, b = in_one_dtype(a, b)
    if isinstance(axes, (int, np.integer)):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise ValueError(f"axes must be in 0 ... {min(a.ndim, b.ndim)}, the axes that both operands have")
        return _contraction(a, b, tuple(range(a.ndim - int(axes), a.ndim)), tuple(range(int(axes))))
    of_a, of_b = axes
    return _contraction(a, b, normalize_axis_tuple(of_a, a.ndim), normalize_axis_tuple(of_b, b.ndim))


@op
@float16_in_float32
def dot(a: Array, b: Array, /) -> Result:
    """Numpy's dot: the sum over the last axis of a and the last but one of b, or its only one; a number multiplies.

    For matrices as `matmul`; for more axes (2, 3, 4) and (5, 4, 6) -> (2, 3, 5, 6), where `matmul` broadcasts.
    """
    a, b = in_one_dtype(a, b)
    if a.ndim == 0 or b.ndim == 0:
        return a * b, (lambda g: g * b, lambda g: g * a)
    return _contraction(a, b, (a.ndim - 1,), (max(b.ndim - 2, 0),))


@op
@float16_in_float32
def inner(a: Array, b: Array, /) -> Result:
    """The sum of products over the last axes: (2, 3) and (4, 3) -> (2, 4), (3,) and (3,) -> (); a number multiplies."""
    a, b = in_one_dtype(a, b)
    if a.ndim == 0 or b.ndim == 0:
        return a * b, (lambda g: g * b, lambda g: g * a)
    return _contraction(a, b, (a.ndim - 1,), (b.ndim - 1,))


@op
@float16_in_float32
def vdot(a: Array, b: Array, /) -> Result:
    """The sum of all products of two flattened arrays with as many elements."""
    a, b = in_one_dtype(a, b)
    if a.size != b.size:
        raise ValueError(f"a and b must have as many elements, but they have {a.size} and {b.size}")
    return sum_of_products(a, b), (lambda g: g * b.reshape(a.shape), lambda g: g * a.reshape(b.shape))


@op
@float16_in_float32
def outer(a: Array, b: Array, /) -> Result:
    """All products of an element of a and one of b, both flattened: (2,) and (3,) -> (2, 3)."""
    a, b = in_one_dtype(a, b)
    return np.outer(a, b), (
        lambda g: (g @ b.reshape(-1)).reshape(a.shape),
        lambda g: (a.reshape(-1) @ g).reshape(b.shape),
    )


@op
def cross(a: Array, b: Array, /) -> Result:
    """The cross product of vectors of three elements along the last axis; other axes broadcast."""
    a, b = in_one_dtype(a, b)
    if a.shape[-1:] != (3,) or b.shape[-1:] != (3,):
        raise ValueError("a and b must have three elements along the last axis")
    return np.cross(a, b), (lambda g: np.cross(b, g), lambda g: np.cross(g, a))


@op
@float16_in_float32
def kron(a: Array, b: Array, /) -> Result:
    """The Kronecker product, a in which each element is replaced by it times b: (2, 3) and (4, 5) -> (8, 15)."""
    a, b = in_one_dtype(a, b)
    ndim = max(a.ndim, b.ndim)
    rows = (1,) * (ndim - a.ndim) + a.shape
    columns = (1,) * (ndim - b.ndim) + b.shape
    left = a.reshape([size for n in rows for size in (n, 1)])
    right = b.reshape([size for n in columns for size in (1, n)])
    pairs = [size for pair in zip(rows, columns, strict=True) for size in pair]

    def gradient(g: Array, other: Array, summed: int, shape: tuple[int, ...]) -> Array:
        products = g.reshape(pairs) * other
        return np.asarray(add_over(products, tuple(range(summed, 2 * ndim, 2)))).reshape(shape)

    return (left * right).reshape([n * m for n, m in zip(rows, columns, strict=True)]), (
        lambda g: gradient(g, right, 1, a.shape),
        lambda g: gradient(g, left, 0, b.shape),
    )


def in_one_dtype(a: Array, b: Array) -> tuple[Array, Array]:
    """Both as arrays of their common dtype; a Python number promotes nothing."""
    dtype = np.result_type(a, b)
    return np.asarray(a, dtype), np.asarray(b, dtype)


def _contraction(a: Array, b: Array, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> Result:
    """The sum of products over pairs of axes, as one product of matrices."""
    if [a.shape[axis] for axis in of_a] != [b.shape[axis] for axis in of_b]:
        raise ValueError(f"axes {of_a} of a and {of_b} of b must be as many, and have the same sizes")
    rows = [axis for axis in range(a.ndim) if axis not in of_a]
    columns = [axis for axis in range(b.ndim) if axis not in of_b]
    order_a, order_b = [*rows, *of_a], [*of_b, *columns]
    moved_a, moved_b = a.transpose(order_a), b.transpose(order_b)
    inner = math.prod(a.shape[axis] for axis in of_a)
    left = moved_a.reshape(math.prod(moved_a.shape[: len(rows)]), inner)
    right = moved_b.reshape(inner, math.prod(moved_b.shape[len(of_b) :]))
    shape = len(left), right.shape[1]
    return (left @ right).reshape(moved_a.shape[: len(rows)] + moved_b.shape[len(of_b) :]), (
        lambda g: _times_transposed(g.reshape(shape), right).reshape(moved_a.shape).transpose(np.argsort(order_a)),
        lambda g: (left.T @ g.reshape(shape)).reshape(moved_b.shape).transpose(np.argsort(order_b)),
    )
