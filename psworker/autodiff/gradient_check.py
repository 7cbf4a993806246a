"""Gradient check: compares an op's derivative with central finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pswire.tensors.values import IndexedSlices
from psworker.autodiff.tape import gradients, no_grad
from psworker.autodiff.tensor import Array, Gradient, Tensor

# Relative and absolute, by dtype. A central difference of step h = eps^(1/3) errs by about h^2 + eps / h = 1e-10.
# Float32 is compared with the float64 gradient, as differences in float32 are precise to three digits only.
TOLERANCES = {np.dtype(np.float64): (1e-7, 1e-8), np.dtype(np.float32): (1e-4, 1e-5)}
STEP = float(np.finfo(np.float64).eps) ** (1 / 3)


def check_gradients(f: Callable[..., Tensor], *args: ArrayLike, float32: bool = True, seed: int = 0) -> None:
    """Check the gradient of `f` with respect to each floating-point argument; other arguments are constants.

    `f` takes one Tensor per argument and returns a Tensor of any shape; it must be smooth near the arguments (no 0
    under a relu, no tie under a maximum), which are rounded to float32 first. With results weighted at random (`seed`):

    - in float64, each derivative is near its central finite difference (Nocedal and Wright, Numerical Optimization,
      2006, section 8.1);
    - a second backward pass gives the same, after the caller has overwritten the arrays of the first;
    - in float32, if asked for, the result is float32 and each derivative is near the one in float64.

    Raises AssertionError that names the argument and the index of the worst element, or the wrong dtype.
    """
    y, xs = _evaluate(f, args, np.float64)
    weights = np.asarray(np.random.default_rng(seed).standard_normal(y.shape))
    weights.setflags(write=False)  # a vjp that writes into its borrowed g then fails
    exact = {number: gradient.copy() for number, gradient in _gradients(y, xs, weights).items()}
    differences = {number: _differences(f, xs, number, weights) for number in exact}
    _compare(exact, differences, "the finite difference is")

    for gradient in _gradients(y, xs, weights).values():
        gradient.fill(np.nan)
    _compare(_gradients(y, xs, weights), exact, "an earlier backward pass gave")

    if float32:
        y, xs = _evaluate(f, args, np.float32)
        if y.dtype != np.float32:
            raise AssertionError(f"float32 arguments gave a result of {y.dtype}")
        _compare(_gradients(y, xs, weights), exact, "the one in float64 is")


def _evaluate(
    f: Callable[..., Tensor], args: Iterable[ArrayLike], dtype: type[np.floating[Any]]
) -> tuple[Tensor, list[Tensor]]:
    """The result, and the tensors it was computed from: floating point rounded to float32, in a dtype."""
    arrays = [np.asarray(arg) for arg in args]
    xs = [Tensor(x.astype(np.float32).astype(dtype), True) if x.dtype.kind == "f" else Tensor(x) for x in arrays]
    y = f(*xs)
    if not isinstance(y, Tensor):
        raise TypeError(f"check_gradients: f must return a Tensor, but it returned {type(y).__name__}")
    return y, xs


def _gradients(y: Tensor, xs: list[Tensor], weights: Array) -> dict[int, Array]:
    """The gradient of each floating-point argument, by position; zeros where the result does not depend on it."""
    found = zip(xs, gradients(y, xs, weights, retain_graph=True), strict=True)
    return {
        number: np.zeros_like(x.value) if gradient is None else dense(gradient)
        for number, (x, gradient) in enumerate(found)
        if x.requires_grad
    }


def dense(gradient: Gradient) -> Array:
    """The gradient as a dense array."""
    return gradient.to_dense() if isinstance(gradient, IndexedSlices) else gradient


def _differences(f: Callable[..., Tensor], xs: list[Tensor], number: int, weights: Array) -> Array:
    """Central differences of sum(weights * f(*xs)) by each element of one argument."""
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


def _compare(found: dict[int, Array], references: dict[int, Array], source: str) -> None:
    for number, got in found.items():
        expected = references[number]
        relative, absolute = TOLERANCES[got.dtype]
        excess = np.abs(got - expected) - (relative * np.abs(expected) + absolute)
        if np.all(excess <= 0):  # false for NaN too
            continue
        worst = np.unravel_index(np.argmax(np.where(np.isnan(excess), np.inf, excess)), excess.shape)
        index = tuple(int(i) for i in worst)
        raise AssertionError(
            f"argument {number}, index {index}: the gradient is {got[index]:.9g}, but {source} {expected[index]:.9g} "
            f"({got.dtype}, tolerance {relative:g} relative and {absolute:g} absolute)"
        )
