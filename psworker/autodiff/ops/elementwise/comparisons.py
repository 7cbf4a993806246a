"""Comparisons, logic, tests and rounding of elements, which have no derivative: they return numpy arrays.

Operands broadcast, and may be tensors, arrays and numbers. The derivative of rounding is 0 wherever it exists: its
result is a constant, and `gradients` returns None for what reaches a loss only through it. To choose elements by a
condition, with derivatives, pass it to `where`.
"""

from __future__ import annotations

import numpy as np

from psworker.autodiff.tensor import Array, TensorLike, as_array

__all__ = ["allclose", "ceil", "equal", "floor", "floor_divide", "greater", "greater_equal", "isclose", "isfinite"]
__all__ += ["isinf", "isnan", "less", "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor"]
__all__ += ["not_equal", "round", "sign", "trunc"]


def equal(a: TensorLike, b: TensorLike) -> Array:
    """True where a == b, as booleans; the mean is an accuracy. (A tensor's own == is identity.)"""
    return np.asarray(np.equal(as_array(a), as_array(b)))


def not_equal(a: TensorLike, b: TensorLike) -> Array:
    """True where a != b, as booleans."""
    return np.asarray(np.not_equal(as_array(a), as_array(b)))


def greater(a: TensorLike, b: TensorLike) -> Array:
    """True where a > b, as booleans."""
    return np.asarray(np.greater(as_array(a), as_array(b)))


def greater_equal(a: TensorLike, b: TensorLike) -> Array:
    """True where a >= b, as booleans."""
    return np.asarray(np.greater_equal(as_array(a), as_array(b)))


def less(a: TensorLike, b: TensorLike) -> Array:
    """True where a < b, as booleans."""
    return np.asarray(np.less(as_array(a), as_array(b)))


def less_equal(a: TensorLike, b: TensorLike) -> Array:
    """True where a <= b, as booleans."""
    return np.asarray(np.less_equal(as_array(a), as_array(b)))


def isclose(a: TensorLike, b: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Array:
    """True where |a - b| <= atol + rtol * |b|, as booleans; NaN is close to NaN only if `equal_nan`."""
    return np.asarray(np.isclose(as_array(a), as_array(b), rtol, atol, equal_nan))


def allclose(a: TensorLike, b: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """True if all elements are close, see `isclose`; a Python bool."""
    return bool(np.allclose(as_array(a), as_array(b), rtol, atol, equal_nan))


def logical_and(a: TensorLike, b: TensorLike) -> Array:
    """True where both elements are true (not 0), as booleans."""
    return np.asarray(np.logical_and(as_array(a), as_array(b)))


def logical_or(a: TensorLike, b: TensorLike) -> Array:
    """True where at least one of two elements is true (not 0), as booleans."""
    return np.asarray(np.logical_or(as_array(a), as_array(b)))


def logical_xor(a: TensorLike, b: TensorLike) -> Array:
    """True where exactly one of two elements is true (not 0), as booleans."""
    return np.asarray(np.logical_xor(as_array(a), as_array(b)))


def logical_not(x: TensorLike) -> Array:
    """True where each element is false (0), as booleans."""
    return np.asarray(np.logical_not(as_array(x)))


def isnan(x: TensorLike) -> Array:
    """True where each element is NaN, as booleans."""
    return np.asarray(np.isnan(as_array(x)))


def isinf(x: TensorLike) -> Array:
    """True where each element is inf or -inf, as booleans."""
    return np.asarray(np.isinf(as_array(x)))


def isfinite(x: TensorLike) -> Array:
    """True where each element is neither infinite nor NaN, as booleans."""
    return np.asarray(np.isfinite(as_array(x)))


def sign(x: TensorLike) -> Array:
    """-1, 0 or 1 by the sign of each element, NaN for NaN."""
    return np.asarray(np.sign(as_array(x)))


def floor(x: TensorLike) -> Array:
    """The largest integer that is not above each element, in the dtype of x."""
    return np.asarray(np.floor(as_array(x)))


def ceil(x: TensorLike) -> Array:
    """The smallest integer that is not below each element, in the dtype of x."""
    return np.asarray(np.ceil(as_array(x)))


def trunc(x: TensorLike) -> Array:
    """Each element rounded towards 0 to an integer, in the dtype of x."""
    return np.asarray(np.trunc(as_array(x)))


def round(x: TensorLike, decimals: int = 0) -> Array:
    """Each element rounded to `decimals` places, halves to the even neighbour (0.5 -> 0), in the dtype of x."""
    return np.asarray(np.round(as_array(x), decimals))


def floor_divide(a: TensorLike, b: TensorLike) -> Array:
    """The largest integer that is not above a / b, elementwise, as `a // b` in Python; the remainder is `mod`."""
    return np.asarray(np.floor_divide(as_array(a), as_array(b)))
