"""First values of variables: each function here makes an `Initializer`, which draws an array of a shape.

    kernel = Variable(truncated_normal(0.1)((5, 5, 1, 32), np.random.default_rng(0)))

Values are float32 and depend on shape and generator alone. Imports numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from pswire.tensors.values import Array

Initializer: TypeAlias = Callable[[tuple[int, ...], np.random.Generator], Array]

__all__ = [
    "Initializer",
    "constant",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "ones",
    "random_normal",
    "random_uniform",
    "truncated_normal",
    "zeros",
]


def constant(value: float) -> Initializer:
    """`value` everywhere."""
    return lambda shape, _: np.full(shape, value, np.float32)


def zeros() -> Initializer:
    """0 everywhere."""
    return constant(0)


def ones() -> Initializer:
    """1 everywhere."""
    return constant(1)


def random_uniform(low: float, high: float) -> Initializer:
    """Uniform from `low` to `high`.

    Raises:
        ValueError: `low` is above `high`.
    """
    if not low <= high:
        raise ValueError(f"random_uniform: low must not be above high, got {low} and {high}")

    def draw(shape: tuple[int, ...], random: np.random.Generator) -> Array:
        return np.asarray(np.float32(low) + np.float32(high - low) * random.random(shape, np.float32))

    return draw


def random_normal(stddev: float, mean: float = 0.0) -> Initializer:
    """Normal, with this standard deviation and mean.

    Raises:
        ValueError: `stddev` is negative.
    """
    _check_stddev("random_normal", stddev)

    def draw(shape: tuple[int, ...], random: np.random.Generator) -> Array:
        return np.asarray(np.float32(mean) + np.float32(stddev) * random.standard_normal(shape, np.float32))

    return draw


def truncated_normal(stddev: float, mean: float = 0.0) -> Initializer:
    """Normal, but what falls further than two standard deviations from the mean is drawn again.

    `stddev` is that of the normal before the cut, as in TensorFlow 1; that of the values is 0.8796 of it.

    Raises:
        ValueError: `stddev` is negative.
    """
    _check_stddev("truncated_normal", stddev)

    def draw(shape: tuple[int, ...], random: np.random.Generator) -> Array:
        values = random.standard_normal(math.prod(shape), np.float32)
        outside = np.flatnonzero(np.abs(values) > 2)
        while outside.size:
            again = random.standard_normal(outside.size, np.float32)
            values[outside] = again
            outside = outside[np.abs(again) > 2]
        return (np.float32(mean) + np.float32(stddev) * values).reshape(shape)

    return draw


def glorot_uniform() -> Initializer:
    """Uniform within sqrt(6 / (fan_in + fan_out)) of 0, for layers whose activation is linear near 0, such as tanh.

    The fans of a shape (..., inputs, outputs) are inputs and outputs, each times the sizes before them: of a kernel
    (height, width, channels, filters), height * width * channels and height * width * filters.

    Source: X. Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks",
    AISTATS 2010, equation 16; variance 2 / (fan_in + fan_out), equation 12.
    """
    return _scaled_uniform("glorot_uniform", lambda fan_in, fan_out: 2 / (fan_in + fan_out))


def glorot_normal() -> Initializer:
    """Normal, of the variance of `glorot_uniform`: 2 / (fan_in + fan_out); not cut."""
    return _scaled_normal("glorot_normal", lambda fan_in, fan_out: 2 / (fan_in + fan_out))


def he_uniform() -> Initializer:
    """Uniform, of the variance of `he_normal`: within sqrt(6 / fan_in) of 0."""
    return _scaled_uniform("he_uniform", lambda fan_in, _: 2 / fan_in)


def he_normal() -> Initializer:
    """Normal of variance 2 / fan_in, for layers followed by a relu; not cut. Fans as in `glorot_uniform`.

    Source: K. He, X. Zhang, S. Ren, J. Sun, "Delving Deep into Rectifiers", ICCV 2015, equation 10.
    """
    return _scaled_normal("he_normal", lambda fan_in, _: 2 / fan_in)


Variance: TypeAlias = Callable[[int, int], float]  # of fan_in and fan_out


def _scaled_uniform(name: str, variance: Variance) -> Initializer:
    def draw(shape: tuple[int, ...], random: np.random.Generator) -> Array:
        limit = math.sqrt(3 * variance(*_fans(name, shape)))  # a uniform's variance is a third of its limit's square
        return random_uniform(-limit, limit)(shape, random)

    return draw


def _scaled_normal(name: str, variance: Variance) -> Initializer:
    def draw(shape: tuple[int, ...], random: np.random.Generator) -> Array:
        return random_normal(math.sqrt(variance(*_fans(name, shape))))(shape, random)

    return draw


def _fans(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """How many inputs one output depends on, and how many outputs one input reaches; 1 at least."""
    if len(shape) < 2:
        raise ValueError(
            f"{name}: needs a shape (..., inputs, outputs), got {shape}: give this one another initializer"
        )
    area = math.prod(shape[:-2])
    return max(area * shape[-2], 1), max(area * shape[-1], 1)


def _check_stddev(name: str, stddev: float) -> None:
    if not stddev >= 0:
        raise ValueError(f"{name}: stddev must be 0 or more, got {stddev}")
