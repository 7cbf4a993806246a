"""What stands between the layers of a network: activations, softmax and dropout, each beside its derivative.

Only numpy, `pswire.tensors.sums`, the tape and `precision.py` may be imported here.
"""

from __future__ import annotations

import os
import threading

import numpy as np

from pswire.tensors.sums import add_over
from psworker.autodiff.ops.precision import float16_in_float32, floating
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Vjp

__all__ = ["dropout", "leaky_relu", "log_softmax", "relu", "sigmoid", "softmax"]


@op
def relu(x: Array, /) -> Result:
    """max(x, 0), of the shape of x; the derivative at 0 is taken as 0."""
    y = np.clip(x, 0, np.inf)  # np.maximum(x, 0) takes three times as long
    return y, (relu_vjp(y),)


def relu_vjp(y: Array) -> Vjp:
    """The way back through `relu`, given its result; this is all that need be kept of it."""

    def gradient(g: Array) -> Array:
        passed: Array = (y > 0).astype(g.dtype)
        passed *= g
        return passed

    return gradient


@op
def leaky_relu(x: Array, /, slope: float = 0.2) -> Result:
    """max(x, slope * x), of the shape of x, for a slope from 0 to 1; the derivative at 0 is taken as the slope.

    Source: A. Maas, A. Hannun, A. Ng, "Rectifier Nonlinearities Improve Neural Network Acoustic Models", ICML 2013,
    equation 2 with slope 0.01; 0.2 is that of A. Radford, L. Metz, S. Chintala, "Unsupervised Representation Learning
    with Deep Convolutional Generative Adversarial Networks", ICLR 2016. Raises ValueError for another slope.
    """
    if not 0 <= slope <= 1:
        raise ValueError("slope must be from 0 to 1")

    def gradient(g: Array) -> Array:
        passed: Array = np.greater(x, 0).astype(g.dtype)
        passed *= 1 - slope
        passed += slope
        passed *= g
        return passed

    return np.maximum(x, np.multiply(x, slope)), (gradient,)


@op
def sigmoid(x: Array, /) -> Result:
    """1 / (1 + exp(-x)), of the shape of x; no exponential overflows, and small values keep their precision."""
    x = floating(x)
    y = stable_sigmoid(x, np.exp(-np.abs(x)))
    return y, (lambda g: g * y * (1 - y),)


@op
@float16_in_float32
def softmax(x: Array, /, axis: int = -1) -> Result:
    """exp(x) / sum(exp(x)) along one axis, of the shape of x; finite for every finite x."""
    x = floating(x)
    y = np.exp(x - np.max(x, axis=axis, keepdims=True))
    y /= add_over(y, axis, keepdims=True)
    return y, (lambda g: y * (g - add_over(g * y, axis, keepdims=True)),)


@op
@float16_in_float32
def log_softmax(x: Array, /, axis: int = -1) -> Result:
    """The logarithm of softmax, x - log(sum(exp(x))) along one axis, of the shape of x; finite."""
    x = floating(x)
    shifted = x - np.max(x, axis=axis, keepdims=True)
    y = shifted - np.log(add_over(np.exp(shifted), axis, keepdims=True))
    return y, (lambda g: g - np.exp(y) * add_over(g, axis, keepdims=True),)


class _Random(threading.local):
    """A generator for each thread, and a new one in a process that was forked: no two of them leave out the same."""

    def __init__(self) -> None:
        self.seed()

    def seed(self, *seeds: int) -> None:
        """Begins a new generator: by the seeds, or without any by the operating system's."""
        self.generator = np.random.default_rng(seeds or None)


_random = _Random()
if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_random.seed)


def seed_dropout(*seeds: int) -> None:
    """Seeds the generator that `dropout` draws from in this thread; each from 0 up."""
    _random.seed(*seeds)


@op
def dropout(x: Array, /, rate: float, training: bool = True, generator: np.random.Generator | None = None) -> Result:
    """Each element zero with probability `rate`, otherwise x / (1 - rate), which keeps its mean; x when not training.

    `rate`: from 0 up and below 1. `generator` draws what is left out; by default one of this thread, which
    `psworker.set_random_seed` seeds by the seed and the worker's name. Without that, and in a process that was forked,
    the operating system has seeded it, so that every run and every worker draws differently. The result has the shape
    of x.

    Source: N. Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR 15, 2014,
    section 10 for the division in training. Raises ValueError for another rate.
    """
    if not 0 <= rate < 1:
        raise ValueError("rate, the share that is left out, must be from 0 up and below 1")
    if not training or rate == 0:
        return x, (lambda g: g,)
    draw = (_random.generator if generator is None else generator).random
    x = np.asarray(x)
    factors = (draw(x.shape, np.float32) >= rate).astype(x.dtype if x.dtype.kind == "f" else np.float32)
    factors *= 1 / (1 - rate)
    return x * factors, (lambda g: g * factors,)


def stable_sigmoid(x: Array, decayed: Array) -> Array:
    """The sigmoid of x, given exp(-abs(x)): 1 / (1 + exp(-x)) above 0, exp(x) / (1 + exp(x)) below."""
    above = np.greater_equal(x, 0).astype(decayed.dtype)
    y: Array = np.maximum(decayed, above) / (1 + decayed)  # np.where takes eight times as long
    return y
