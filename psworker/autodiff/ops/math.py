"""Arithmetic, powers, exponentials and comparisons, element by element, each beside its derivative.

Shapes are numpy's own: operands broadcast. So are dtypes among tensors; what is no tensor promotes nothing, see
`tape.py`, and where numpy would make float16 of integers, see `precision.py`. Products of matrices are in
`products.py`, sums over axes in `reductions.py`. Only numpy, the tape and `precision.py` may be imported here.
"""

from __future__ import annotations

import builtins
import functools

import numpy as np

from psworker.autodiff.ops.precision import floating
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array

__all__ = [
    "abs",
    "add",
    "clip",
    "divide",
    "exp",
    "log",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "power",
    "softplus",
    "sqrt",
    "square",
    "subtract",
    "tanh",
]

WHOLE = frozenset((*range(-8, -1), *range(3, 9)))  # the small whole exponents for which numpy knows no short way


@op
def add(a: Array, b: Array, /) -> Result:
    """The sum a + b, of the shape that a and b broadcast to."""
    return np.add(a, b), (lambda g: g, lambda g: g)


@op
def subtract(a: Array, b: Array, /) -> Result:
    """The difference a - b, of the shape that a and b broadcast to."""
    return np.subtract(a, b), (lambda g: g, lambda g: -g)


@op
def multiply(a: Array, b: Array, /) -> Result:
    """The product a * b, element by element, of the shape that a and b broadcast to."""
    return np.multiply(a, b), (lambda g: g * b, lambda g: g * a)


@op
def divide(a: Array, b: Array, /) -> Result:
    """The true quotient a / b, of integers too, of the shape that a and b broadcast to."""
    y = np.divide(a, b)
    return y, (lambda g: g / b, lambda g: -g * y / b)


@op
def negative(x: Array, /) -> Result:
    """-x, of the shape of x."""
    return np.negative(x), (lambda g: -g,)


@op
def power(x: Array, exponent: Array, /) -> Result:
    """The power x ** exponent, of the shape that both broadcast to; 0 ** 0 is 1.

    Where the exponent is 0 the derivative by x is 0. The derivative by the exponent, x ** exponent * log(x), is taken
    as 0 where x is 0 and the exponent is not negative. For a negative x it is nan, and so is the power unless the
    exponent is a whole number; numpy warns of both.
    """
    if isinstance(exponent, (int, float)):
        by_x = (lambda g: g * (exponent * _raised(x, exponent - 1))) if exponent != 0 else np.zeros_like
        return _raised(x, exponent), (by_x,)
    y = np.power(x, exponent)

    def x_gradient(g: Array) -> Array:
        less_one = np.where(np.equal(exponent, 0), 0, exponent - 1)  # 0 * x ** -1 would be nan at 0
        gradient: Array = g * (exponent * np.power(x, less_one))
        return gradient

    def exponent_gradient(g: Array) -> Array:
        base = np.where(np.equal(x, 0) & np.greater_equal(exponent, 0), 1, x)
        gradient: Array = g * (y * np.log(base, dtype=y.dtype))
        return gradient

    return y, (x_gradient, exponent_gradient)


def _raised(x: Array, exponent: float) -> Array:
    """The power, by products for whole exponents: numpy's own takes a hundred times as long where x is negative."""
    x = np.asarray(x)
    if exponent in WHOLE and x.dtype.kind == "f" and not isinstance(exponent, np.generic):
        factor = x if exponent > 0 else 1 / x
        return functools.reduce(np.multiply, [factor] * builtins.abs(int(exponent)))
    return x**exponent


@op
def square(x: Array, /) -> Result:
    """The square x * x, element by element, of the shape of x."""
    return np.square(x), (lambda g: 2 * g * x,)


@op
def sqrt(x: Array, /) -> Result:
    """The square root, of the shape of x; its derivative at 0 is infinite, of which numpy warns."""
    y = np.sqrt(floating(x))
    return y, (lambda g: g / (2 * y),)


@op
def abs(x: Array, /) -> Result:
    """The absolute value |x|, of the shape of x; the derivative at 0 is taken as 0."""
    return np.abs(x), (lambda g: g * np.sign(x),)


@op
def exp(x: Array, /) -> Result:
    """The exponential e ** x, of the shape of x."""
    y = np.exp(floating(x))
    return y, (lambda g: g * y,)


@op
def log(x: Array, /) -> Result:
    """The natural logarithm, of the shape of x."""
    return np.log(floating(x)), (lambda g: g / x,)


@op
def tanh(x: Array, /) -> Result:
    """The hyperbolic tangent, of the shape of x."""
    y = np.tanh(floating(x))
    return y, (lambda g: g * (1 - y * y),)


@op
def softplus(x: Array, /) -> Result:
    """log(1 + exp(x)), a smooth relu, of the shape of x; nothing overflows, and small values keep their precision."""
    x = floating(x)
    small = np.exp(-np.abs(x))
    y = np.maximum(x, 0) + np.log1p(small)
    return y, (lambda g: g * (np.exp(np.minimum(x, 0)) / (1 + small)),)


@op
def maximum(a: Array, b: Array, /) -> Result:
    """The larger of a and b, of the shape that both broadcast to; where equal each gets half of the gradient."""
    return np.maximum(a, b), (lambda g: g * _share(a, b, g), lambda g: g * _share(b, a, g))


@op
def minimum(a: Array, b: Array, /) -> Result:
    """The smaller of a and b, of the shape that both broadcast to; where equal each gets half of the gradient."""
    return np.minimum(a, b), (lambda g: g * _share(b, a, g), lambda g: g * _share(a, b, g))


def _share(larger: Array, smaller: Array, g: Array) -> Array:
    """1 where the one is larger, 1/2 where it is equal and 0 where it is smaller, in the dtype of g."""
    halves: Array = np.add(np.greater(larger, smaller), np.greater_equal(larger, smaller), dtype=g.dtype)
    return halves / 2


@op
def clip(x: Array, /, low: float, high: float) -> Result:
    """Each element held between two numbers, of the shape of x; gradient passes only where low <= x <= high."""
    if low > high:
        raise ValueError("low must not be above high")
    return np.clip(x, low, high), (lambda g: g * ((x >= low) & (x <= high)),)
