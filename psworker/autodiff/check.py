"""The gradient check: an op's own derivative against central finite differences.

For tests, and for whoever writes an op. Imports numpy and the tape alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pswire.tensors.values import IndexedSlices
from psworker.autodiff.tape import gradients, no_grad
from psworker.autodiff.tensor import Array, Gradient, Tensor

# Relative and absolute, by dtype. A central difference of step h errs by some h^2 (times the third derivative) and
# eps / h (rounding): 1e-10 at h = eps^(1/3), from which float64's tolerance keeps its distance. Float32 is held against
# the float64 gradient, not against differences of its own, which would be good to three digits only.
TOLERANCES = {np.dtype(np.float64): (1e-7, 1e-8), np.dtype(np.float32): (1e-4, 1e-5)}
STEP = float(np.finfo(np.float64).eps) ** (1 / 3)


def check_gradients(f: Callable[..., Tensor], *args: ArrayLike, float32: bool = True, seed: int = 0) -> None:
    """Checks the gradient of `f` with respect to each floating-point argument; the others reach `f` as constants.

    `f` takes one Tensor an argument and returns a Tensor of any shape; near the arguments it must be smooth (no 0 under
    a relu, no tie under a maximum). They may have any shape, and are rounded to float32 first, so that both
    precisions see the same numbers. With the elements of the result weighted at random (by `seed`):

    - in float64, each derivative is near its central finite difference (Nocedal and Wright, Numerical Optimization,
      2006, section 8.1);
    - a second backward pass gives the same again, after the caller has written into the arrays of the first;
    - in float32, if asked for, the result is float32 and each derivative is near the one in float64.

    Raises AssertionError that names the argument and the index of the worst element, or the dtype that is wrong.
    """
    rounded = [_cast(arg, np.float32) for arg in args]
    y, xs = _evaluate(f, rounded, np.float64)
    weights = np.asarray(np.random.default_rng(seed).standard_normal(y.shape))
    weights.setflags(write=False)  # so that a vjp that writes into the gradient it was lent is found out
    exact = {number: gradient.copy() for number, gradient in _gradients(y, xs, weights).items()}
    for number, gradient in exact.items():
        _compare(number, gradient, _differences(f, xs, number, weights), "finite differences say")

    for gradient in _gradients(y, xs, weights).values():
        gradient.fill(np.nan)
    for number, again in _gradients(y, xs, weights).items():
        _compare(number, again, exact[number], "an earlier backward pass said")

    if float32:
        y, xs = _evaluate(f, rounded, np.float32)
        if y.dtype != np.float32:
            raise AssertionError(f"float32 arguments gave a result of {y.dtype}")
        for number, gradient in _gradients(y, xs, weights).items():
            _compare(number, gradient, exact[number], "the one in float64 is")


def _cast(x: ArrayLike, dtype: type[np.floating[Any]]) -> Array:
    """A copy in a floating-point dtype, or the array itself where that does not apply."""
    array = np.asarray(x)
    return array.astype(dtype) if array.dtype.kind == "f" else array


def _evaluate(
    f: Callable[..., Tensor], args: list[Array], dtype: type[np.floating[Any]]
) -> tuple[Tensor, list[Tensor]]:
    xs = [Tensor(_cast(arg, dtype), requires_grad=arg.dtype.kind == "f") for arg in args]
    y = f(*xs)
    if not isinstance(y, Tensor):
        raise TypeError(f"check_gradients: f must return a Tensor, but it returned {type(y).__name__}")
    return y, xs


def _gradients(y: Tensor, xs: list[Tensor], weights: Array) -> dict[int, Array]:
    """The gradient for each floating-point argument, by its number; zeros where the result claims not to need it."""
    arguments = {number: x for number, x in enumerate(xs) if x.requires_grad}
    found = zip(arguments.items(), gradients(y, arguments.values(), weights, retain_graph=True), strict=True)
    return {number: np.zeros_like(x.value) if gradient is None else dense(gradient) for (number, x), gradient in found}


def dense(gradient: Gradient) -> Array:
    """The gradient as an array, zeros included."""
    return gradient.to_dense() if isinstance(gradient, IndexedSlices) else gradient


def _differences(f: Callable[..., Tensor], xs: list[Tensor], number: int, weights: Array) -> Array:
    """The derivative of sum(weights * f(*xs)) by each element of one argument, from two values of f beside it."""
    x = xs[number].value
    derivative = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = STEP * max(1.0, abs(float(x[index])))
        low, high = x.copy(), x.copy()
        low[index] -= step
        high[index] += step
        with no_grad():
            y_low, y_high = (f(*xs[:number], Tensor(moved), *xs[number + 1 :]).value for moved in (low, high))
        derivative[index] = np.sum(weights * (y_high - y_low)) / (high[index] - low[index])
    return derivative


def _compare(number: int, got: Array, wanted: Array, source: str) -> None:
    relative, absolute = TOLERANCES[got.dtype]
    excess = np.abs(got - wanted) - (relative * np.abs(wanted) + absolute)
    if np.all(excess <= 0):  # false for nan too
        return
    worst = np.unravel_index(np.argmax(np.where(np.isnan(excess), np.inf, excess)), excess.shape)
    index = tuple(int(i) for i in worst)
    raise AssertionError(
        f"argument {number}, index {index}: the gradient is {got[index]:.9g}, but {source} {wanted[index]:.9g} "
        f"({got.dtype}, tolerance {relative:g} relative and {absolute:g} absolute)"
    )
