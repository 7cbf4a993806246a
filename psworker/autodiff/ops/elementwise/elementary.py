"""Elementary functions of single elements, each beside its derivative.

Trigonometric and hyperbolic functions and their inverses, in radians; logarithms and exponentials near 0 and to other
bases; roots, reciprocals and remainders. Names are numpy's and JAX's. Integers are taken as float32. Outside a
function's domain the result is NaN, at a pole infinite, and numpy warns, as for numpy arrays. Arithmetic is in
`math.py`; rounding, which has no derivative, in `comparisons.py`.
"""

from __future__ import annotations

import math

import numpy as np

from psworker.autodiff.tape import Result, float16_in_float32, floating, op
from psworker.autodiff.tensor import Array

__all__ = ["arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "cbrt", "cos", "cosh", "deg2rad"]
__all__ += ["exp2", "expm1", "hypot", "log1p", "log2", "log10", "logaddexp", "mod", "rad2deg", "reciprocal", "rsqrt"]
__all__ += ["sin", "sinc", "sinh", "tan"]


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
def arcsinh(x: Array, /) -> Result:
    """The inverse hyperbolic sine; its derivative, 1 / sqrt(1 + x^2), is 0 at infinity."""
    x = floating(x)
    return np.arcsinh(x), (lambda g: g / np.hypot(x, 1),)  # x^2 may overflow


@op
def arccosh(x: Array, /) -> Result:
    """The inverse hyperbolic cosine of x from 1 up; the derivative at 1 is inf, and numpy warns."""
    x = floating(x)
    return np.arccosh(x), (lambda g: g / (np.sqrt(x - 1) * np.sqrt(x + 1)),)


@op
def arctanh(x: Array, /) -> Result:
    """The inverse hyperbolic tangent of x in -1 ... 1; at -1 and 1 it is infinite, and numpy warns."""
    x = floating(x)
    return np.arctanh(x), (lambda g: g / ((1 - x) * (1 + x)),)


@op
def hypot(a: Array, b: Array, /) -> Result:
    """sqrt(a^2 + b^2) without overflow; the derivatives at (0, 0), a kink, are taken as 0."""
    a, b = floating(a), floating(b)
    y = np.hypot(a, b)
    length = np.where(y == 0, 1, y)
    return y, (lambda g: g * (a / length), lambda g: g * (b / length))


@op
def deg2rad(x: Array, /) -> Result:
    """Degrees in radians, x * pi / 180."""
    return np.deg2rad(floating(x)), (lambda g: g * (math.pi / 180),)


@op
def rad2deg(x: Array, /) -> Result:
    """Radians in degrees, x * 180 / pi."""
    return np.rad2deg(floating(x)), (lambda g: g * (180 / math.pi),)


@op
@float16_in_float32
def sinc(x: Array, /) -> Result:
    """sin(pi * x) / (pi * x), and 1 at 0; as numpy's, with the factor pi."""
    x = np.asarray(floating(x))

    def gradient(g: Array) -> Array:
        angle = np.pi * x
        small = np.abs(angle) < 0.5
        far = np.where(small, 1, angle)
        closed = (far * np.cos(far) - np.sin(far)) / (far * far)
        return np.asarray(g * (math.pi * np.where(small, _slope_of_sinc_near_0(np.where(small, angle, 0)), closed)))

    return np.sinc(x), (gradient,)


def _slope_of_sinc_near_0(x: Array) -> Array:
    """The derivative of sin(x) / x by its Taylor series, as the terms of the closed form cancel; for |x| < 0.5."""
    y: Array = np.zeros_like(x)
    for n in range(6, 0, -1):
        y = y * (x * x) + (-1) ** n * 2 * n / math.factorial(2 * n + 1)
    return y * x


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
def exp2(x: Array, /) -> Result:
    """2 ** x."""
    y = np.exp2(floating(x))
    return y, (lambda g: g * (y * math.log(2)),)


@op
@float16_in_float32
def logaddexp(a: Array, b: Array, /) -> Result:
    """log(exp(a) + exp(b)), finite for finite operands; for more than two terms see `logsumexp`.

    The derivatives are exp(a - y) and exp(b - y) at the result y, and 0 where y is -inf.
    """
    a, b = floating(a), floating(b)
    y = np.logaddexp(a, b)
    shift = np.where(y == -np.inf, 0, y)
    return y, (lambda g: g * np.exp(a - shift), lambda g: g * np.exp(b - shift))


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


@op
def cbrt(x: Array, /) -> Result:
    """The cube root, of negative x too; the derivative at 0 is inf, and numpy warns."""
    y = np.cbrt(floating(x))
    return y, (lambda g: g / (3 * y * y),)


@op
def mod(a: Array, b: Array, /) -> Result:
    """The remainder a - floor(a / b) * b, of the sign of b, as `a % b` in Python.

    The derivatives are 1 and -floor(a / b), also where the remainder jumps.
    """
    return np.mod(a, b), (lambda g: g, lambda g: -g * np.floor_divide(a, b))
