"""Activations, softmax and dropout, each beside its derivative. All keep the shape of x."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from pswire.tensors.sums import add_over
from psworker.autodiff.ops.elementwise.math import error_function
from psworker.autodiff.tape import Result, float16_in_float32, floating, op
from psworker.autodiff.tensor import Array, Vjp

__all__ = ["dropout", "elu", "gelu", "leaky_relu", "log_sigmoid", "log_softmax", "relu", "selu", "sigmoid", "silu"]
__all__ += ["softmax", "softplus"]


@op
def relu(x: Array, /) -> Result:
    """max(x, 0); the derivative at 0 is taken as 0."""
    y = np.clip(x, 0, np.inf)  # three times as fast as np.maximum(x, 0)
    return y, (relu_vjp(y),)


def relu_vjp(y: Array) -> Vjp:
    """The vjp of `relu`, given its result; a tenth faster than g * (y > 0)."""

    def gradient(g: Array) -> Array:
        passed: Array = (y > 0).astype(g.dtype)
        passed *= g
        return passed

    return gradient


@op
def leaky_relu(x: Array, /, slope: float = 0.2) -> Result:
    """max(x, slope * x), for a slope from 0 to 1; the derivative at 0 is taken as the slope.

    Source: A. Maas, A. Hannun, A. Ng, "Rectifier Nonlinearities Improve Neural Network Acoustic Models", ICML 2013,
    equation 2; the slope is that of A. Radford, L. Metz, S. Chintala, "Unsupervised Representation Learning with Deep
    Convolutional Generative Adversarial Networks", ICLR 2016. Raises ValueError for another slope.
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
def elu(x: Array, /, alpha: float = 1.0) -> Result:
    """X where it is positive, and alpha * (exp(x) - 1) elsewhere; the derivative at 0 is taken as alpha.

    Source: D. Clevert, T. Unterthiner, S. Hochreiter, "Fast and Accurate Deep Network Learning by Exponential Linear
    Units (ELUs)", ICLR 2016, equation 15.
    """
    x = floating(np.asarray(x))
    return _exponential_linear(x, 1, alpha)


@op
def selu(x: Array, /) -> Result:
    """1.0507 * elu(x, 1.6733), which keeps activations near mean 0 and variance 1 behind kernels of `lecun_normal`.

    Source: G. Klambauer, T. Unterthiner, A. Mayr, S. Hochreiter, "Self-Normalizing Neural Networks", NIPS 2017,
    equations 2 and 14.
    """
    return _exponential_linear(floating(np.asarray(x)), 1.0507009873554805, 1.6732632423543772)


def _exponential_linear(x: Array, scale: float, alpha: float) -> Result:
    below = np.expm1(np.minimum(x, 0)) * alpha  # 0 where x is positive

    def gradient(g: Array) -> Array:
        return np.asarray(g * (scale * np.where(x > 0, 1, below + alpha)))

    return (np.maximum(x, 0) + below) * scale, (gradient,)


@op
@float16_in_float32
def silu(x: Array, /) -> Result:
    """X * sigmoid(x), also called swish.

    Source: S. Elfwing, E. Uchibe, K. Doya, "Sigmoid-Weighted Linear Units for Neural Network Function Approximation in
    Reinforcement Learning", Neural Networks 107, 2018, equations 10 and 11.
    """
    x = floating(np.asarray(x))
    share = logistic(x)
    return x * share, (lambda g: g * (share * (1 + x * (1 - share))),)


@op
@float16_in_float32
def sigmoid(x: Array, /) -> Result:
    """1 / (1 + exp(-x)), without overflow, and precise for small results."""
    y = logistic(floating(np.asarray(x)))
    return y, (lambda g: g * y * (1 - y),)


def logistic(x: Array) -> Array:
    """`sigmoid` of a floating-point array; 0 where exp(-x) overflows."""
    y: Array = np.negative(x, out=np.empty_like(x))
    with np.errstate(over="ignore"):
        np.exp(y, out=y)
    y += 1
    return np.divide(1, y, out=y)


@op
@float16_in_float32
def log_sigmoid(x: Array, /) -> Result:
    """The logarithm of `sigmoid`, -log(1 + exp(-x)), without overflow."""
    x = floating(x)
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))), (lambda g: g * logistic(np.negative(x)),)


@op
@float16_in_float32
def softplus(x: Array, /) -> Result:
    """log(1 + exp(x)), a smooth relu, without overflow, and precise for small results."""
    x = floating(x)
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), (lambda g: g * logistic(x),)


@op
def gelu(x: Array, /) -> Result:
    """The Gaussian error linear unit, x * Phi(x) with Phi(x) = (1 + erf(x / sqrt(2))) / 2; exact, without tanh.

    Source: D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415, 2016, section 2.
    """
    x = floating(np.asarray(x))
    probability = 0.5 * (1 + error_function(x * math.sqrt(0.5)))
    scale = 1 / math.sqrt(2 * math.pi)
    return x * probability, (lambda g: g * (probability + x * (np.exp(-0.5 * np.square(x)) * scale)),)


@op
@float16_in_float32
def softmax(x: Array, /, axis: int = -1) -> Result:
    """exp(x) / sum(exp(x)) along an axis; finite for finite x."""
    x = floating(x)
    y = np.exp(x - np.max(x, axis=axis, keepdims=True))
    y /= add_over(y, axis, keepdims=True)
    return y, (lambda g: y * (g - add_over(g * y, axis, keepdims=True)),)


@op
@float16_in_float32
def log_softmax(x: Array, /, axis: int = -1) -> Result:
    """The logarithm of softmax, x - log(sum(exp(x))) along an axis; finite for finite x."""
    x = floating(x)
    shifted = x - np.max(x, axis=axis, keepdims=True)
    y = shifted - np.log(add_over(np.exp(shifted), axis, keepdims=True))
    return y, (lambda g: g - np.exp(y) * add_over(g, axis, keepdims=True),)


class _Random(threading.local):
    """One generator per thread, replaced after a fork, so that no two draw the same numbers."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()


_random = _Random()


def seed_dropout(*seeds: int) -> None:
    """Seed this thread's default generator of `dropout` with non-negative integers; the system seeds it without any."""
    _random.generator = np.random.default_rng(seeds or None)


def dropout_generator() -> np.random.Generator:
    """This thread's default generator of `dropout`."""
    return _random.generator


def dropout_state() -> dict[str, str]:
    """The state of this thread's default generator of `dropout`, for a checkpoint: texts, so that JSON keeps them."""
    state: dict[str, Any] = dict(_random.generator.bit_generator.state)
    numbers = {**state.pop("state"), "has_uint32": state.pop("has_uint32"), "uinteger": state.pop("uinteger")}
    return {"bit_generator": state["bit_generator"], **{name: str(number) for name, number in numbers.items()}}


def set_dropout_state(state: Mapping[str, str]) -> None:
    """Let this thread's default generator continue from a `dropout_state`: `dropout` draws the very same masks.

    Raises ValueError for a state of another kind of generator, or one that is incomplete; then nothing has changed.
    """
    generator = np.random.Generator(np.random.PCG64())
    try:
        numbers = {name: int(state[name]) for name in ("state", "inc", "has_uint32", "uinteger")}
        generator.bit_generator.state = {
            "bit_generator": state["bit_generator"],
            "state": {"state": numbers["state"], "inc": numbers["inc"]},
            "has_uint32": numbers["has_uint32"],
            "uinteger": numbers["uinteger"],
        }
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"not a state of the generator of dropout (PCG64): {dict(state)} ({error!r})") from error
    _random.generator = generator


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=seed_dropout)


@op
def dropout(x: Array, /, rate: float, training: bool = True, generator: np.random.Generator | None = None) -> Result:
    """Zero each element with probability `rate` and scale the others by 1 / (1 - rate); x itself when not training.

    `rate`: at least 0 and below 1. `generator`: by default one per thread, which `psworker.set_random_seed` seeds with
    the seed and the worker's name; without that, and after a fork, the operating system seeds it.

    Source: N. Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR 15, 2014,
    section 10 for the division in training. Raises ValueError for another rate.
    """
    if not 0 <= rate < 1:
        raise ValueError("rate, the probability of a zero, must be at least 0 and below 1")
    if not training or rate == 0:
        return x, (lambda g: g,)
    draw = (_random.generator if generator is None else generator).random
    x = np.asarray(x)
    factors = (draw(x.shape, np.float32) >= rate).astype(x.dtype if x.dtype.kind == "f" else np.float32)
    factors *= 1 / (1 - rate)
    return x * factors, (lambda g: g * factors,)
