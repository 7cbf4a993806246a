"""Systems of linear equations, inverses, determinants and Cholesky factors, each beside its derivative.

All take stacks of matrices (..., n, n); leading axes broadcast. They are computed by LAPACK: integers as float32,
float16 in float32. A singular matrix raises ValueError.

Source of the derivatives but for Cholesky's: M. Giles, "An extended collection of matrix derivative results for forward
and reverse mode algorithmic differentiation", Oxford University report 08/01, 2008, section 2.2.
"""

from __future__ import annotations

import numpy as np

from psworker.autodiff.tape import Result, float16_in_float32, floating, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike

__all__ = ["cholesky", "det", "inv", "slogdet", "solve"]


@op
@float16_in_float32
def solve(a: Array, b: Array, /) -> Result:
    """The x with a @ x = b, for a of shape (..., n, n) and b of (..., n, m), or of (n,), then for each a.

    Faster and more precise than `inv`. Raises ValueError when the shapes do not fit, or a is singular.
    """
    a, b = _square(a), floating(np.asarray(b))
    size = a.shape[-1]
    if b.shape[-2:][:1] != (size,):
        raise ValueError(f"b must have shape (..., {size}, m) or ({size},), but its shape is {b.shape}")
    columns = b[:, np.newaxis] if b.ndim == 1 else b
    x = np.linalg.solve(a, columns)

    def of_columns(g: Array) -> Array:
        return np.linalg.solve(a.swapaxes(-1, -2), g.reshape(x.shape))

    return x[..., 0] if b.ndim == 1 else x, (
        lambda g: -of_columns(g) @ x.swapaxes(-1, -2),
        lambda g: of_columns(g)[..., 0] if b.ndim == 1 else of_columns(g),
    )


@op
@float16_in_float32
def inv(x: Array, /) -> Result:
    """The inverses of matrices (..., n, n); to multiply one by b, `solve` is better. ValueError for a singular one."""
    y = np.linalg.inv(_square(x))
    transposed = y.swapaxes(-1, -2)
    return y, (lambda g: -transposed @ g @ transposed,)


@op
@float16_in_float32
def det(x: Array, /) -> Result:
    """The determinants of matrices (..., n, n) -> (...). For many rows it over- or underflows: use `slogdet`.

    The derivative, det(x) inv(x)^T, is that of an invertible matrix; of a singular one it raises ValueError.
    """
    x = _square(x)
    y = np.asarray(np.linalg.det(x))
    return y, (lambda g: (g * y)[..., np.newaxis, np.newaxis] * _inverse("det", x).swapaxes(-1, -2),)


def slogdet(x: TensorLike) -> tuple[Array, Tensor]:
    """The signs of the determinants of matrices (..., n, n), -1, 0 or 1, and the logarithms of their absolute values.

    The signs are a numpy array. Of a singular matrix the logarithm is -inf; its derivative raises ValueError.
    """
    both = _slogdet(x)
    return both.value[0], both[1]


@op
@float16_in_float32
def _slogdet(x: Array, /) -> Result:
    x = _square(x)
    sign, logarithm = np.linalg.slogdet(x)
    return np.stack([sign, logarithm]), (
        lambda g: g[1][..., np.newaxis, np.newaxis] * _inverse("slogdet", x).swapaxes(-1, -2),
    )


@op
@float16_in_float32
def cholesky(x: Array, /) -> Result:
    """The lower triangular L with L @ L^T = (x + x^T) / 2, for positive definite matrices (..., n, n).

    The derivative is symmetric, as it is that by the symmetric part of x. Source: I. Murray, "Differentiation of the
    Cholesky decomposition", arXiv:1602.07527, 2016, equation 10. Raises ValueError unless x is positive definite.
    """
    x = _square(x)
    factor = np.linalg.cholesky((x + x.swapaxes(-1, -2)) / 2)
    transposed = factor.swapaxes(-1, -2)

    def gradient(g: Array) -> Array:
        lower = np.tril(transposed @ g)
        diagonal = np.arange(lower.shape[-1])
        lower[..., diagonal, diagonal] /= 2
        symmetric = (lower + lower.swapaxes(-1, -2)) / 2
        half = np.linalg.solve(transposed, symmetric)
        return np.asarray(np.linalg.solve(transposed, half.swapaxes(-1, -2)).swapaxes(-1, -2))

    return factor, (gradient,)


def _square(x: Array) -> Array:
    x = floating(np.asarray(x))
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"the matrices must have shape (..., n, n), but the shape is {x.shape}")
    return x


def _inverse(name: str, x: Array) -> Array:
    try:
        return np.linalg.inv(x)
    except np.linalg.LinAlgError:
        raise ValueError(f"{name}: its derivative needs the inverse of a matrix, which is singular") from None
