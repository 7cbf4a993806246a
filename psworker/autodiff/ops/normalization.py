"""Batch normalisation, layer normalisation and moments, each beside its derivatives.

`x` is (..., features) of floating point; `gamma` and `beta` are (features,), or None for 1 and 0. Results have the
shape and dtype of x. Wrong shapes are a ValueError, other dtypes of x a TypeError.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TypeAlias

import numpy as np

from pswire.tensors.sums import add_over, widened
from psworker.autodiff.tape import Result, float16_in_float32, op
from psworker.autodiff.tensor import Array, Tensor, TensorLike, as_array

__all__ = ["batch_norm", "batch_norm_inference", "layer_norm", "moments"]

Moments: TypeAlias = tuple[Array, Array]  # mean and variance


def moments(x: TensorLike) -> Moments:
    """Mean and biased variance, mean((x - mean)^2), over all axes but the last: two arrays (features,).

    No gradient flows through them. Raises ValueError when there are no elements.
    """
    x = as_array(x)
    mean, variance = _moments("moments: ", x)
    return mean.astype(x.dtype, copy=False), variance.astype(x.dtype, copy=False)


def _moments(where: str, x: Array) -> Moments:
    """`moments`, in float32 for float16."""
    rows = widened(_rows(where, x, 0))
    mean = _mean(rows, 0)
    return mean.reshape(-1), _mean(np.square(rows - mean), 0).reshape(-1)


def batch_norm(
    x: TensorLike, gamma: TensorLike | None = None, beta: TensorLike | None = None, epsilon: float = 1e-3
) -> Tensor:
    """Batch normalisation: (x - mean) / sqrt(variance + epsilon) * gamma + beta, by the moments of this batch.

    Moments are over all axes but the last, and the gradient includes theirs. Raises ValueError for an empty batch.

    Source: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, algorithm 1; gradients in section 3.
    """
    return _batch_norm(x, gamma, beta, epsilon)  # type: ignore[arg-type]


def batch_norm_with_moments(
    x: TensorLike, gamma: TensorLike | None, beta: TensorLike | None, epsilon: float
) -> tuple[Tensor, Array, Array]:
    """`batch_norm` and the batch's mean and variance, (features,) each, computed once."""
    mean, variance = _moments("batch_norm: ", as_array(x))
    return _batch_norm(x, gamma, beta, epsilon, (mean, variance)), mean, variance  # type: ignore[arg-type]


@op
@partial(float16_in_float32, as_first=True)
def _batch_norm(
    x: Array, gamma: Array | None, beta: Array | None, /, epsilon: float, moments: Moments | None = None
) -> Result:
    return _normalised(x, gamma, beta, 0, epsilon, moments)


def layer_norm(
    x: TensorLike, gamma: TensorLike | None = None, beta: TensorLike | None = None, epsilon: float = 1e-5
) -> Tensor:
    """Layer normalisation: (x - mean) / sqrt(variance + epsilon) * gamma + beta, by the moments of each example.

    Moments are over the last axis; the batch may be empty.

    Source: J. Ba, J. Kiros, G. Hinton, "Layer Normalization", 2016, equations 3 and 4 (arXiv:1607.06450).
    """
    return _layer_norm(x, gamma, beta, epsilon)  # type: ignore[arg-type]


@op
@partial(float16_in_float32, as_first=True)
def _layer_norm(x: Array, gamma: Array | None, beta: Array | None, /, epsilon: float) -> Result:
    return _normalised(x, gamma, beta, 1, epsilon)


def batch_norm_inference(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    epsilon: float = 1e-3,
) -> Tensor:
    """Batch normalisation: (x - mean) / sqrt(variance + epsilon) * gamma + beta, by given moments (features,).

    The moments, such as moving averages, are constants: TypeError when one requires a gradient. The batch may be empty.

    Source: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, algorithm 2.
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
    y = x - mean  # x * scale + shift would cancel digits far from 0
    y *= scale
    if beta is not None:
        y += beta
    return y, (lambda g: g * scale, lambda g: _feature_sums(g * (x - mean)) * inverse, _feature_sums)


def _normalised(
    x: Array, gamma: Array | None, beta: Array | None, axis: int, epsilon: float, moments: Moments | None = None
) -> Result:
    """Both ops: x as a matrix, normalised to mean 0 and variance 1 along `axis`, times gamma plus beta.

    With n = (x - mean) / deviation, the gradient of x is (h - mean(h) - n * mean(h * n)) / deviation, h = g * gamma.
    In-place operations save temporaries of the size of x, each as expensive as a sum over x.
    """
    rows = _rows("", x, axis, gamma=gamma, beta=beta)
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

    return y.reshape(x.shape), (x_gradient, lambda g: _feature_sums(g.reshape(rows.shape) * normal), _feature_sums)


def _check(where: str, x: Array, **vectors: TensorLike | None) -> None:
    """Raise unless x is floating point (..., features) and each of the vectors is (features,) or None."""
    if np.ndim(x) == 0 or x.dtype.kind != "f":
        raise TypeError(f"{where}x must be floating point, of shape (..., features)")
    for name, vector in vectors.items():
        if vector is not None and np.shape(vector) != x.shape[-1:]:
            raise ValueError(f"{where}{name} must have shape {x.shape[-1:]}, but its shape is {np.shape(vector)}")


def _rows(where: str, x: Array, axis: int, **vectors: TensorLike | None) -> Array:
    """`x`, after `_check`, as a matrix (examples, features), which must not be empty along the axis."""
    _check(where, x, **vectors)
    rows = _matrix(x)
    if rows.shape[axis] == 0:
        raise ValueError(f"{where}there are no elements to take the mean of")
    return rows


def _matrix(x: Array) -> Array:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _feature_sums(x: Array) -> Array:
    """Sums over all axes but the last."""
    sums: Array = add_over(_matrix(x), 0)
    return sums


def _mean(matrix: Array, axis: int) -> Array:
    """The mean along an axis, kept with size 1."""
    mean: Array = add_over(matrix, axis, keepdims=True) / matrix.shape[axis]
    return mean
