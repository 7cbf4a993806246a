"""Elementary functions of single elements, each beside its derivative, and rounding and tests, which have none.

Trigonometric and hyperbolic functions and their inverses, in radians; logarithms and exponentials near 0 and to other
bases; reciprocals. Names are numpy's and JAX's. Integers are taken as float32. Outside a function's domain the result
is NaN, at a pole infinite, and numpy warns, as for numpy arrays. Arithmetic is in `math.py`.

`sign`, `floor`, `ceil`, `round`, `isnan`, `isinf` and `isfinite` return numpy arrays: the derivative of the first four
is 0 wherever it exists, so they are constants, and `gradients` returns None for what reaches a loss only through them.
"""

from __future__ import annotations

import math

import numpy as np

from psworker.autodiff.tape import Result, floating, op
from psworker.autodiff.tensor import Array, TensorLike, as_array

__all__ = ["arccos", "arcsin", "arctan", "arctan2", "ceil", "cos", "cosh", "expm1", "floor", "isfinite", "isinf"]
__all__ += ["isnan", "log1p", "log2", "log10", "reciprocal", "round", "rsqrt", "sign", "sin", "sinh", "tan"]


@op
def sin(x: Array, /) -> Result:
    """The sine of an angle in radians."""
    x = floating(x)
    return np.sin(x), (lambda g: g * np.cos(x),)


@op
def cos(x: Array, /) -> Result:
    """The cosine of an angle in radians."""
    x = floating(x)
    return np.cos(x), (lambda g: -g * np.sin(x),)


@op
def tan(x: Array, /) -> Result:
    """The tangent of an angle in radians; with the derivative 1 + y^2 at the result y."""
    y = np.tan(floating(x))
    return y, (lambda g: g * (1 + y * y),)


@op
def arcsin(x: Array, /) -> Result:
    """The inverse sine of x in -1 ... 1, in -pi/2 ... pi/2; the derivative at -1 and 1 is inf, and numpy warns."""
    x = floating(x)
    return np.arcsin(x), (lambda g: g / _cathetus(x),)


@op
def arccos(x: Array, /) -> Result:
    """The inverse cosine of x in -1 ... 1, in 0 ... pi; the derivative at -1 and 1 is -inf, and numpy warns."""
    x = floating(x)
    return np.arccos(x), (lambda g: -g / _cathetus(x),)


def _cathetus(x: Array) -> Array:
    """sqrt(1 - x^2), precise near 1, where the square would lose half of the digits."""
    length: Array = np.sqrt((1 - x) * (1 + x))
    return length


@op
def arctan(x: Array, /) -> Result:
    """The inverse tangent, in -pi/2 ... pi/2; its derivative, 1 / (1 + x^2), is 0 at infinity."""
    x = floating(x)

    def gradient(g: Array) -> Array:
        length = np.hypot(x, 1)  # x^2 may overflow
        return np.asarray(g / length / length)

    return np.arctan(x), (gradient,)


@op
def arctan2(y: Array, x: Array, /) -> Result:
    """The angle of the point (x, y) in -pi ... pi; the derivatives at (0, 0), which has no angle, are taken as 0.

    At y = 0 and x < 0, where the angle jumps by 2 pi, they are those of either side, which are equal.
    """
    y, x = floating(y), floating(x)
    value = np.arctan2(y, x)

    def gradient(g: Array, leg: Array, sign: int) -> Array:
        length = np.hypot(y, x)
        length = np.where(length == 0, 1, length)
        return np.asarray(g * (sign * leg / length / length))

    return value, (lambda g: gradient(g, x, 1), lambda g: gradient(g, y, -1))


@op
def sinh(x: Array, /) -> Result:
    """The hyperbolic sine, (exp(x) - exp(-x)) / 2."""
    x = floating(x)
    return np.sinh(x), (lambda g: g * np.cosh(x),)


@op
def cosh(x: Array, /) -> Result:
    """The hyperbolic cosine, (exp(x) + exp(-x)) / 2."""
    x = floating(x)
    return np.cosh(x), (lambda g: g * np.sinh(x),)


@op
def log1p(x: Array, /) -> Result:
    """log(1 + x), precise near 0; at -1 the result is -inf and the derivative inf, and numpy warns."""
    x = floating(x)
    return np.log1p(x), (lambda g: g / (1 + x),)


@op
def expm1(x: Array, /) -> Result:
    """exp(x) - 1, precise near 0."""
    x = floating(x)
    return np.expm1(x), (lambda g: g * np.exp(x),)


@op
def log2(x: Array, /) -> Result:
    """The logarithm to base 2."""
    x = floating(x)
    return np.log2(x), (lambda g: g / (x * math.log(2)),)


@op
def log10(x: Array, /) -> Result:
    """The logarithm to base 10."""
    x = floating(x)
    return np.log10(x), (lambda g: g / (x * math.log(10)),)


@op
def reciprocal(x: Array, /) -> Result:
    """1 / x; for integers too, where numpy's is 0."""
    y = np.divide(1, floating(x))
    return y, (lambda g: -g * y * y,)


@op
def rsqrt(x: Array, /) -> Result:
    """1 / sqrt(x), as `jax.lax.rsqrt`."""
    x = floating(x)
    y = 1 / np.sqrt(x)
    return y, (lambda g: -g * y / (2 * x),)


def sign(x: TensorLike) -> Array:
    """-1, 0 or 1 by the sign of each element, NaN for NaN; without a derivative."""
    return np.asarray(np.sign(as_array(x)))


def floor(x: TensorLike) -> Array:
    """The largest integer that is not above each element, in the dtype of x; without a derivative."""
    return np.asarray(np.floor(as_array(x)))


def ceil(x: TensorLike) -> Array:
    """The smallest integer that is not below each element, in the dtype of x; without a derivative."""
    return np.asarray(np.ceil(as_array(x)))


def round(x: TensorLike, decimals: int = 0) -> Array:
    """Each element rounded to `decimals` places, halves to the even neighbour (0.5 -> 0); without a derivative."""
    return np.asarray(np.round(as_array(x), decimals))


def isnan(x: TensorLike) -> Array:
    """Whether each element is NaN, as booleans."""
    return np.asarray(np.isnan(as_array(x)))


def isinf(x: TensorLike) -> Array:
    """Whether each element is inf or -inf, as booleans."""
    return np.asarray(np.isinf(as_array(x)))


def isfinite(x: TensorLike) -> Array:
    """Whether each element is neither infinite nor NaN, as booleans."""
    return np.asarray(np.isfinite(as_array(x)))
