"""Diagonals and triangles of matrices, each beside its derivative."""

from __future__ import annotations

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from pswire.tensors.sums import add_over
from psworker.autodiff.tape import Result, float16_in_float32, op
from psworker.autodiff.tensor import Array

__all__ = ["diag", "diagonal", "trace", "tril", "triu"]


@op
def tril(x: Array, /, k: int = 0) -> Result:
    """Matrices (..., n, m) with zeros above diagonal k; ValueError for x with fewer than two axes."""
    return np.tril(_matrices(x), k), (lambda g: np.tril(g, k),)


@op
def triu(x: Array, /, k: int = 0) -> Result:
    """Matrices (..., n, m) with zeros below diagonal k; ValueError for x with fewer than two axes."""
    return np.triu(_matrices(x), k), (lambda g: np.triu(g, k),)


@op
def diagonal(x: Array, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Result:
    """The diagonals of the matrices along two axes, as the last axis of the result: (n, n, 5) -> (5, n).

    `offset`: the number of the diagonal, above the main one if positive.
    """
    x = _matrices(x)
    return np.diagonal(x, offset, axis1, axis2).copy(), (lambda g: _on_diagonal(g, x.shape, offset, axis1, axis2),)


@op
def diag(x: Array, /, k: int = 0) -> Result:
    """The matrix with the vector x on diagonal k, (n,) -> (n + |k|, n + |k|), or diagonal k of a matrix x.

    Raises ValueError for x with another number of axes.
    """
    x = np.asarray(x)
    if x.ndim not in (1, 2):
        raise ValueError(f"x must be a vector or a matrix, but its shape is {x.shape}; see diagonal")
    if x.ndim == 1:
        return np.diag(x, k), (lambda g: np.diagonal(g, k).copy(),)
    return np.diagonal(x, k).copy(), (lambda g: _on_diagonal(g, x.shape, k, 0, 1),)


@op
@float16_in_float32
def trace(x: Array, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Result:
    """The sum of each diagonal, see `diagonal`: (n, n) -> ()."""
    x = _matrices(x)

    def gradient(g: Array) -> Array:
        length = np.diagonal(x, offset, axis1, axis2).shape[-1]
        wide = np.broadcast_to(g[..., np.newaxis], (*g.shape, length))
        return _on_diagonal(wide, x.shape, offset, axis1, axis2)

    return add_over(np.diagonal(x, offset, axis1, axis2), -1), (gradient,)


def _matrices(x: Array) -> Array:
    x = np.asarray(x)
    if x.ndim < 2:
        raise ValueError(f"x must have at least two axes, but its shape is {x.shape}")
    return x


def _on_diagonal(values: Array, shape: tuple[int, ...], offset: int, axis1: int, axis2: int) -> Array:
    """Zeros of a shape, but for the diagonals, whose values are along the last axis."""
    total = np.zeros(shape, values.dtype)
    places = np.arange(values.shape[-1])
    axes = normalize_axis_index(axis1, len(shape)), normalize_axis_index(axis2, len(shape))
    np.moveaxis(total, axes, (-2, -1))[..., places - min(offset, 0), places + max(offset, 0)] = values
    return total
