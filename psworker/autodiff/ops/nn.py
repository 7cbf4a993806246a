"""What stands between the layers of a network: activations and softmax, each beside its derivative.

Only numpy and the tape may be imported here.
"""

from __future__ import annotations

import numpy as np

from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array

__all__ = ["log_softmax", "relu", "sigmoid", "softmax"]


@op
def relu(x: Array, /) -> Result:
    """max(x, 0); the derivative at 0 is taken as 0."""
    return np.maximum(x, 0), (lambda g: g * (x > 0),)


@op
def sigmoid(x: Array, /) -> Result:
    """1 / (1 + exp(-x)), written so that no exponential overflows and small values keep their precision."""
    small = np.exp(-np.abs(x))
    y = np.where(np.greater_equal(x, 0), 1, small) / (1 + small)
    return y, (lambda g: g * y * (1 - y),)


@op
def softmax(x: Array, /, axis: int = -1) -> Result:
    """exp(x) / sum(exp(x)) along one axis, of the shape of x; finite for every finite x."""
    y = np.exp(x - np.max(x, axis=axis, keepdims=True))
    y /= np.sum(y, axis=axis, keepdims=True)
    return y, (lambda g: y * (g - np.sum(g * y, axis=axis, keepdims=True)),)


@op
def log_softmax(x: Array, /, axis: int = -1) -> Result:
    """The logarithm of softmax, x - log(sum(exp(x))) along one axis, of the shape of x; finite."""
    shifted = x - np.max(x, axis=axis, keepdims=True)
    y = shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
    return y, (lambda g: g - np.exp(y) * np.sum(g, axis=axis, keepdims=True),)
