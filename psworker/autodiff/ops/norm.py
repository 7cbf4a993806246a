"""Normalisation over the batch or over the features of an example, and the moments of a batch.

Only numpy, `pswire.tensors.sums`, the tape and `precision.py` may be imported here.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from pswire.tensors.sums import add_over, widened
from psworker.autodiff.ops.precision import float16_in_float32
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike, as_array

__all__ = ["batch_norm", "batch_norm_inference", "layer_norm", "moments"]


def moments(x: TensorLike) -> tuple[Array, Array]:
    """The mean and the variance over all axes but the last: two arrays of shape (features,), without a gradient.

    The variance is that of these very numbers, mean((x - mean)^2). Raises ValueError when there are none.
    """
    x = as_array(x)
    mean, variance = _moments("moments: ", x)
    return mean.astype(x.dtype, copy=False), variance.astype(x.dtype, copy=False)


def _moments(where: str, x: Array) -> tuple[Array, Array]:
    """The moments; those of float16 in float32."""
    _check(where, x)
    rows = widened(_rows(where, x, 0))
    mean = _mean(rows, 0)
    return mean.reshape(-1), _mean(np.square(rows - mean), 0).reshape(-1)


def batch_norm(
    x: TensorLike, gamma: TensorLike | None = None, beta: TensorLike | None = None, epsilon: float = 1e-3
) -> Tensor:
    """Batch normalisation in training: the moments are those of this batch, over all axes but the last.

        gamma * (x - mean) / sqrt(variance + epsilon) + beta

    `x`: (..., features); `gamma`, `beta`: (features,), or None for 1 and 0. The result has the shape of x. The gradient
    takes into account that the moments depend on x; for moments that do not there is `batch_norm_inference`.

    Source: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, algorithm 1; gradients in section 3. Raises
    ValueError when the shapes do not fit or there is no example, TypeError when x is not floating point.
    """
    return _batch_norm(x, gamma, beta, epsilon)  # type: ignore[arg-type]


def batch_norm_with_moments(
    x: TensorLike, gamma: TensorLike | None, beta: TensorLike | None, epsilon: float
) -> tuple[Tensor, Array, Array]:
    """`batch_norm` and the moments it went by, (features,) each, worked out once: for the layer that averages them."""
    mean, variance = _moments("batch_norm: ", as_array(x))
    return _batch_norm(x, gamma, beta, epsilon, (mean, variance)), mean, variance  # type: ignore[arg-type]


@op
@partial(float16_in_float32, as_first=True)
def _batch_norm(
    x: Array, gamma: Array | None, beta: Array | None, /, epsilon: float, moments: tuple[Array, Array] | None = None
) -> Result:
    return _normalised(x, gamma, beta, 0, epsilon, moments)


def batch_norm_inference(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    epsilon: float = 1e-3,
) -> Tensor:
    """Batch normalisation by given moments, such as averages over training, which are constants.

        gamma * (x - mean) / sqrt(variance + epsilon) + beta

    `x`: (..., features), the batch may be empty; `mean`, `variance`: (features,); `gamma`, `beta`: (features,), or None
    for 1 and 0. The result has the shape and dtype of x; there are gradients for x, gamma and beta.

    Source: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, algorithm 2. Raises ValueError when the shapes do
    not fit, TypeError when x is not floating point, or mean or variance requires a gradient.
    """
    return _batch_norm_inference(x, gamma, beta, mean, variance, epsilon)  # type: ignore[arg-type]


@op
@partial(float16_in_float32, as_first=True)
def _batch_norm_inference(
    x: Array, gamma: Array | None, beta: Array | None, /, mean: TensorLike, variance: TensorLike, epsilon: float
) -> Result:
    _check("", x, gamma=gamma, beta=beta, mean=mean, variance=variance)
    mean = np.asarray(mean, x.dtype)
    inverse = 1 / np.sqrt(np.asarray(variance, x.dtype) + epsilon)
    scale = inverse if gamma is None else np.multiply(gamma, inverse, dtype=x.dtype)
    y = x - mean  # and not x * scale + shift, whose two terms lose digits far from 0
    y *= scale
    if beta is not None:
        y += beta

    def gamma_gradient(g: Array) -> Array:
        return _feature_sums(g * (x - mean)) * inverse

    return y, (lambda g: g * scale, gamma_gradient, _feature_sums)


def layer_norm(
    x: TensorLike, gamma: TensorLike | None = None, beta: TensorLike | None = None, epsilon: float = 1e-5
) -> Tensor:
    """Layer normalisation: the moments are those of each example's features, over the last axis.

        gamma * (x - mean) / sqrt(variance + epsilon) + beta

    `x`: (..., features), the batch may be empty; `gamma`, `beta`: (features,), or None for 1 and 0. The result has the
    shape of x.

    Source: J. Ba, J. Kiros, G. Hinton, "Layer Normalization", 2016, equations 3 and 4 (arXiv:1607.06450). Raises
    ValueError when the shapes do not fit or there are no features, TypeError when x is not floating point.
    """
    return _layer_norm(x, gamma, beta, epsilon)  # type: ignore[arg-type]


@op
@partial(float16_in_float32, as_first=True)
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
    _check("", x, gamma=gamma, beta=beta)
    rows = _rows("", x, axis)
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
        return _feature_sums(g.reshape(rows.shape) * normal)

    return y.reshape(x.shape), (x_gradient, gamma_gradient, _feature_sums)


def _check(where: str, x: Array, **vectors: TensorLike | None) -> None:
    """Raises unless x is floating point, (..., features), and each of the vectors (features,) or None."""
    if np.ndim(x) == 0 or x.dtype.kind != "f":
        raise TypeError(f"{where}x must be floating point, of shape (..., features)")
    for name, vector in vectors.items():
        if vector is not None and np.shape(vector) != x.shape[-1:]:
            raise ValueError(f"{where}{name} must have shape {x.shape[-1:]}, but its shape is {np.shape(vector)}")


def _rows(where: str, x: Array, axis: int) -> Array:
    """X (..., features) as a matrix; along the axis there must be something to take the mean of."""
    rows = _matrix(x)
    if rows.shape[axis] == 0:
        raise ValueError(f"{where}there are no elements to take the mean of")
    return rows


def _matrix(x: Array) -> Array:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _feature_sums(x: Array) -> Array:
    """The sums over all axes but the last."""
    sums: Array = add_over(_matrix(x), 0)
    return sums


def _mean(matrix: Array, axis: int) -> Array:
    """The mean along an axis, which stays with size 1."""
    mean: Array = add_over(matrix, axis, keepdims=True) / matrix.shape[axis]
    return mean
