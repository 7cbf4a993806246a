"""Normalisation over the batch or over the features of an example, and the moments of a batch.

Only numpy and the tape may be imported here.
"""

from __future__ import annotations

import numpy as np

from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike, as_array

__all__ = ["batch_norm", "layer_norm", "moments"]


def moments(x: TensorLike) -> tuple[Array, Array]:
    """The mean and the variance over all axes but the last: two arrays of shape (features,), without a gradient.

    The variance is that of these very numbers, mean((x - mean)^2). Raises ValueError when there are none.
    """
    rows = _rows("moments: ", as_array(x))
    mean = _mean(rows, 0)
    return mean.reshape(-1), _mean(np.square(rows - mean), 0).reshape(-1)


def batch_norm(
    x: TensorLike,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    epsilon: float = 1e-3,
    moments: tuple[Array, Array] | None = None,
) -> Tensor:
    """Batch normalisation in training: the moments are those of this batch, over all axes but the last.

        gamma * (x - mean) / sqrt(variance + epsilon) + beta

    `x`: (..., features); `gamma`, `beta`: (features,), or None for 1 and 0. `moments`: `ops.moments(x)`, if that is
    at hand already. The gradient takes into account that they depend on x.

    Source: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, algorithm 1; gradients in section 3. Raises
    ValueError when the shapes do not fit or there is no example.
    """
    return _batch_norm(x, gamma, beta, epsilon, moments)  # type: ignore[arg-type]


@op
def _batch_norm(
    x: Array, gamma: Array | None, beta: Array | None, /, epsilon: float, moments: tuple[Array, Array] | None = None
) -> Result:
    return _normalised(x, gamma, beta, 0, epsilon, moments)


def layer_norm(
    x: TensorLike, gamma: TensorLike | None = None, beta: TensorLike | None = None, epsilon: float = 1e-5
) -> Tensor:
    """Layer normalisation: the moments are those of each example's features, over the last axis.

        gamma * (x - mean) / sqrt(variance + epsilon) + beta

    `x`: (..., features); `gamma`, `beta`: (features,), or None for 1 and 0.

    Source: J. Ba, J. Kiros, G. Hinton, "Layer Normalization", 2016, equations 3 and 4 (arXiv:1607.06450). Raises
    ValueError when the shapes do not fit or there are no features.
    """
    return _layer_norm(x, gamma, beta, epsilon)  # type: ignore[arg-type]


@op
def _layer_norm(x: Array, gamma: Array | None, beta: Array | None, /, epsilon: float) -> Result:
    return _normalised(x, gamma, beta, 1, epsilon)


def _normalised(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    axis: int,
    epsilon: float,
    moments: tuple[Array, Array] | None = None,
) -> Result:
    """Both ops: x as a matrix, each row or column (along `axis`) brought to mean 0 and variance 1, times gamma + beta.

    With n = (x - mean) / deviation, the gradient of x is (h - mean(h) - n * mean(h * n)) / deviation, h = g * gamma.
    What is written in place saves arrays of the size of x, each of which costs as much as a sum over them.
    """
    rows = _rows("", x)
    for name, vector in ("gamma", gamma), ("beta", beta):
        if vector is not None and np.shape(vector) != rows.shape[1:]:
            raise ValueError(f"{name} must have shape {rows.shape[1:]}, but its shape is {np.shape(vector)}")
    if moments is None:
        normal = rows - _mean(rows, axis)
        y = np.square(normal)
        variance = _mean(y, axis)
    else:
        normal, variance = rows - moments[0], moments[1]
        y = np.empty_like(normal)
    inverse = 1 / np.sqrt(variance + epsilon)
    normal *= inverse
    np.multiply(normal, 1 if gamma is None else gamma, out=y)
    if beta is not None:
        y += beta

    def x_gradient(g: Array) -> Array:
        g = g.reshape(rows.shape)
        if gamma is not None:
            g = g * gamma
        gradient: Array = g * normal
        np.multiply(normal, _mean(gradient, axis), out=gradient)
        gradient += _mean(g, axis)
        np.subtract(g, gradient, out=gradient)
        gradient *= inverse
        return gradient.reshape(x.shape)

    def gamma_gradient(g: Array) -> Array:
        return _sum(g.reshape(rows.shape) * normal, 0).reshape(-1)

    def beta_gradient(g: Array) -> Array:
        return _sum(g.reshape(rows.shape), 0).reshape(-1)

    return y.reshape(x.shape), (x_gradient, gamma_gradient, beta_gradient)


def _rows(where: str, x: Array) -> Array:
    """X (..., features) as a matrix; there must be something to take the mean of."""
    if np.ndim(x) == 0 or x.dtype.kind != "f":
        raise TypeError(f"{where}x must be floating point, of shape (..., features)")
    if x.size == 0:
        raise ValueError(f"{where}there are no elements to take the mean of")
    return x.reshape(-1, x.shape[-1])


def _mean(matrix: Array, axis: int) -> Array:
    """The mean along an axis, which stays with size 1."""
    mean: Array = _sum(matrix, axis) / matrix.shape[axis]
    return mean


def _sum(matrix: Array, axis: int) -> Array:
    """The sum along an axis, which stays with size 1; as a matrix product up to ten times as fast as np.sum."""
    ones = np.ones(matrix.shape[axis], matrix.dtype)
    return np.expand_dims(ones @ matrix if axis == 0 else matrix @ ones, axis)
