"""Arithmetic, powers, exponentials, the matrix product and reductions, each beside its derivative.

Shapes and dtypes are numpy's own: operands broadcast, Python numbers promote nothing, reductions of float32 are
float32. Only numpy and the tape may be imported here.
"""

from __future__ import annotations

import numpy as np

from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, Axis

__all__ = [
    "add",
    "clip",
    "divide",
    "exp",
    "log",
    "matmul",
    "max",
    "mean",
    "multiply",
    "negative",
    "power",
    "square",
    "subtract",
    "sum",
    "tanh",
]


@op
def add(a: Array, b: Array, /) -> Result:
    """The sum a + b, broadcast."""
    return np.add(a, b), (lambda g: g, lambda g: g)


@op
def subtract(a: Array, b: Array, /) -> Result:
    """The difference a - b, broadcast."""
    return np.subtract(a, b), (lambda g: g, lambda g: -g)


@op
def multiply(a: Array, b: Array, /) -> Result:
    """The product a * b, element by element, broadcast."""
    return np.multiply(a, b), (lambda g: g * b, lambda g: g * a)


@op
def divide(a: Array, b: Array, /) -> Result:
    """The true quotient a / b, of integers too, broadcast."""
    y = np.divide(a, b)
    return y, (lambda g: g / b, lambda g: -g * y / b)


@op
def negative(x: Array, /) -> Result:
    """-x."""
    return np.negative(x), (lambda g: -g,)


@op
def power(x: Array, /, exponent: float) -> Result:
    """The power x ** exponent, of one number that is not differentiated; x ** 0 has derivative 0, also at 0."""
    if np.ndim(exponent) != 0:
        raise TypeError(f"exponent must be one number, but its shape is {np.shape(exponent)}")
    derivative = (lambda g: g * (exponent * x ** (exponent - 1))) if exponent != 0 else np.zeros_like
    return np.power(x, exponent), (derivative,)


@op
def square(x: Array, /) -> Result:
    """The square x * x."""
    return np.square(x), (lambda g: 2 * g * x,)


@op
def exp(x: Array, /) -> Result:
    """The exponential e ** x."""
    y = np.exp(x)
    return y, (lambda g: g * y,)


@op
def log(x: Array, /) -> Result:
    """The natural logarithm."""
    return np.log(x), (lambda g: g / x,)


@op
def tanh(x: Array, /) -> Result:
    """The hyperbolic tangent."""
    y = np.tanh(x)
    return y, (lambda g: g * (1 - y * y),)


@op
def clip(x: Array, /, low: float, high: float) -> Result:
    """Each element held between two numbers; gradient passes only where low <= x <= high."""
    if low > high:
        raise ValueError("low must not be above high")
    return np.clip(x, low, high), (lambda g: g * ((x >= low) & (x <= high)),)


@op
def matmul(a: Array, b: Array, /) -> Result:
    """The matrix product over the last two axes, (..., n, k) @ (..., k, m) -> (..., n, m), leading axes broadcast.

    A 1-d operand is a row on the left and a column on the right, and its axis is gone from the result.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError("both operands must have at least one axis")
    inner = b.shape[0 if b.ndim == 1 else -2]
    if a.shape[-1] != inner:
        raise ValueError(f"the last axis of a ({a.shape[-1]}) must be as long as the first matrix axis of b ({inner})")
    if a.ndim == 2 and b.ndim == 2:
        return a @ b, (lambda g: g @ b.T, lambda g: a.T @ g)
    rows = a if a.ndim > 1 else a[np.newaxis, :]
    columns = b if b.ndim > 1 else b[:, np.newaxis]

    def product_gradient(g: Array) -> Array:
        g = g if b.ndim > 1 else g[..., np.newaxis]
        return g if a.ndim > 1 else g[..., np.newaxis, :]

    def a_gradient(g: Array) -> Array:
        gradient = product_gradient(g) @ columns.swapaxes(-1, -2)
        return gradient if a.ndim > 1 else gradient[..., 0, :]

    def b_gradient(g: Array) -> Array:
        g = product_gradient(g)
        if b.ndim <= 2:  # one matrix for the whole batch: one long product instead of a sum of many
            batch = tuple(range(rows.ndim - 1))
            gradient: Array = np.tensordot(rows, g, axes=(batch, batch))
            return gradient.reshape(b.shape)
        return rows.swapaxes(-1, -2) @ g

    return np.matmul(a, b), (a_gradient, b_gradient)


@op
def sum(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The sum over all axes, over one or over a tuple of them; float32 in, float32 out."""
    return np.sum(x, axis=axis, keepdims=keepdims), (lambda g: _spread(g, x.shape, axis, keepdims),)


@op
def mean(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The mean over all axes, over one or over a tuple of them. ValueError when it would be the mean of nothing."""
    total = np.sum(x, axis=axis, keepdims=keepdims)
    if np.size(total) == 0:
        return total, (lambda g: np.zeros(x.shape, g.dtype),)
    count = np.size(x) // np.size(total)
    if count == 0:
        raise ValueError("there are no elements to take the mean of")
    return total / count, (lambda g: _spread(g / count, x.shape, axis, keepdims),)


@op
def max(x: Array, /, axis: Axis = None, keepdims: bool = False) -> Result:
    """The largest element over all axes, over one or over a tuple of them; equal ones share the gradient equally."""
    top = np.max(x, axis=axis, keepdims=True)

    def gradient(g: Array) -> Array:
        largest = x == top
        share: Array = largest / np.sum(largest, axis=axis, keepdims=True, dtype=x.dtype)
        return share * _spread(g, x.shape, axis, keepdims)

    return top if keepdims else np.squeeze(top, axis), (gradient,)


def _spread(g: Array, shape: tuple[int, ...], axis: Axis, keepdims: bool) -> Array:
    """The gradient of a reduction, repeated (as a read-only view) over the axes that were reduced."""
    if axis is not None and not keepdims:
        g = np.expand_dims(g, axis)
    view: Array = np.broadcast_to(g, shape)
    return view
