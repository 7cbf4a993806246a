"""What may be done to gradients between `compute_gradients` and `apply_gradients`: clip, scale, decay, accumulate.

A transform takes a list of (gradient, variable) and returns one; a gradient is an array, `IndexedSlices` or None, and
None stays None. Dtypes stay, whatever the numbers are that a transform is given; what is given is never written into.
Anything that is no such pair is a TypeError. Any other function that maps such a list to another will do as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from pswire.tensors.sums import add_rows, dot, sum_dtype
from pswire.tensors.values import Array, IndexedSlices
from psworker.autodiff.ops.sparse import RowSource
from psworker.autodiff.tape import no_grad
from psworker.autodiff.tensor import Gradient
from psworker.model.variables import BaseVariable

GradientAndVariable: TypeAlias = tuple[Gradient | None, BaseVariable]

__all__ = [
    "accumulate",
    "add_decayed_weights",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "global_norm",
    "per_variable",
    "scale",
]


def per_variable(
    grads_and_vars: Iterable[GradientAndVariable], function: Callable[[Gradient, BaseVariable], Gradient]
) -> list[GradientAndVariable]:
    """Each gradient replaced by `function(gradient, variable)`: anything that keeps its shape; the dtype stays."""

    def kept(gradient: Gradient, variable: BaseVariable) -> Gradient:
        result = function(gradient, variable)
        if isinstance(result, IndexedSlices):
            return result.astype(gradient.dtype, copy=False)
        return np.asarray(result, gradient.dtype)

    return [(None if g is None else kept(g, variable), variable) for g, variable in _pairs(grads_and_vars)]


def clip_by_value(grads_and_vars: Iterable[GradientAndVariable], low: float, high: float) -> list[GradientAndVariable]:
    """Each element held between `low` and `high`; rows that occur twice are added up first.

    Raises:
        ValueError: `low` is above `high`.
    """
    if not low <= high:
        raise ValueError(f"clip_by_value: low must not be above high, got {low} and {high}")
    low, high = float(low), float(high)  # numpy's float64 would make float64 of a float32 gradient

    def clipped(gradient: Gradient, _: BaseVariable) -> Gradient:
        if isinstance(gradient, IndexedSlices):
            gradient = gradient.summed()
            return gradient.with_values(np.clip(gradient.values, low, high))
        whole: Array = np.clip(np.asarray(gradient), low, high)
        return whole

    return per_variable(grads_and_vars, clipped)


def scale(grads_and_vars: Iterable[GradientAndVariable], factor: float) -> list[GradientAndVariable]:
    """Each gradient times `factor`."""
    return per_variable(grads_and_vars, lambda g, _: _times(g, factor))


def clip_by_norm(grads_and_vars: Iterable[GradientAndVariable], max_norm: float) -> list[GradientAndVariable]:
    """Each gradient whose own L2 norm is above `max_norm` is scaled down to it.

    A gradient with NaN or infinity stays as it is: the server refuses it and names its variable.

    Raises:
        ValueError: `max_norm` is not above 0.
    """
    _check_norm("clip_by_norm", max_norm)
    return per_variable(grads_and_vars, lambda g, _: _times(g, _shrink(_norm(g), max_norm)))


def clip_by_global_norm(grads_and_vars: Iterable[GradientAndVariable], max_norm: float) -> list[GradientAndVariable]:
    """All gradients scaled by max_norm / max(global norm, max_norm): their direction stays.

    With NaN or infinity in one of them all stay as they are: the server refuses that one and names its variable.

    Source: R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of training recurrent neural networks", ICML 2013,
    algorithm 1.

    Raises:
        ValueError: `max_norm` is not above 0.
    """
    _check_norm("clip_by_global_norm", max_norm)
    pairs = _pairs(grads_and_vars)
    factor = _shrink(global_norm(pairs), max_norm)
    return pairs if factor == 1 else scale(pairs, factor)


def global_norm(grads_and_vars: Iterable[GradientAndVariable]) -> float:
    """The L2 norm of all gradients together, sqrt(sum of all squares); rows that occur twice count once summed.

    No square overflows or underflows: it is right for all gradients whose norm is a float64.
    """
    return math.hypot(*(_norm(g) for g, _ in _pairs(grads_and_vars) if g is not None))


def add_decayed_weights(grads_and_vars: Iterable[GradientAndVariable], rate: float) -> list[GradientAndVariable]:
    """Each gradient plus `rate` times its variable, the gradient of the penalty rate / 2 * ||w||^2.

    For `IndexedSlices`, of the rows that it has. The weights are the worker's, as old as its gradient; those of a
    `Table` are not kept here, and are fetched, as they are now. Source: A. Krogh, J. Hertz, "A Simple Weight Decay Can
    Improve Generalization", NIPS 1991.
    """
    rate = float(rate)

    def decayed(gradient: Gradient, variable: BaseVariable) -> Gradient:
        if isinstance(gradient, IndexedSlices):
            gradient = gradient.summed()
            return gradient.with_values(gradient.values + rate * _rows(variable, gradient.indices))
        return gradient + rate * variable.value

    return per_variable(grads_and_vars, decayed)


@no_grad()
def _rows(variable: BaseVariable, indices: Array) -> Array:
    """The rows with these numbers, each once and rising; no model has looked them up."""
    if isinstance(variable, RowSource):
        return variable.fetch(indices.astype(np.int64, copy=False))
    rows: Array = variable.value[indices]
    return rows


class accumulate:  # noqa: N801 - called like the functions beside it
    """Means of `n` steps' gradients, as if of a batch `n` times as large: pushes every n-th step only.

        accumulated = ps.accumulate(4)
        for batch in session.batches(...):
            pairs = accumulated(optimizer.compute_gradients(loss(batch)))   # [], [], [], the mean of four
            optimizer.apply_gradients(pairs)                                # which pushes nothing for []

    Attributes:
        n: steps in a mean.
        count: steps that are in the sum now, from 0 up and below `n`.
        totals: the `Total` of each variable that was among the pairs.

    Raises:
        ValueError: `n` is below 1.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"accumulate: n must be 1 or more, got {n}")
        self.n = n
        self.count = 0
        self.totals: dict[BaseVariable, Total] = {}

    def __call__(self, grads_and_vars: Iterable[GradientAndVariable]) -> list[GradientAndVariable]:
        """Takes one step's pairs; returns the mean of `n` steps after the n-th of them, and [] after the others."""
        for gradient, variable in _pairs(grads_and_vars):
            self.totals.setdefault(variable, Total()).add(gradient)
        self.count += 1
        if self.count < self.n:
            return []
        totals, self.totals, self.count = self.totals, {}, 0
        return [(total.gradient(1 / self.n), variable) for variable, total in totals.items()]


class Total:
    """The sum of several gradients of one variable; it shares no memory with any of them.

    float16 is added in float32 and rounded once, in the sum. Rows are kept as they come, and added up at the end and
    when they are twice as many as the variable has.

    Attributes:
        array: the sum, once an array was among the gradients; otherwise None.
        rows: the gradients by rows that are not in `array`.
    """

    def __init__(self) -> None:
        self.array: Array | None = None
        self.rows: list[IndexedSlices] = []
        self._dtype: np.dtype[Any] | None = None

    def add(self, gradient: Gradient | None) -> None:
        """Adds one more; None adds nothing."""
        if gradient is None:
            return
        if not isinstance(gradient, IndexedSlices):
            gradient = np.asarray(gradient)
        if self._dtype is None:
            self._dtype = gradient.dtype
        if isinstance(gradient, IndexedSlices):
            self._add_rows(gradient)
        elif self.array is not None:
            self.array += gradient
        else:
            self.array = np.array(gradient, sum_dtype(gradient.dtype), order="C")
            for rows in self.rows:
                add_rows(self.array, rows.indices, rows.values)
            self.rows = []

    def _add_rows(self, gradient: IndexedSlices) -> None:
        if self.array is not None:
            add_rows(self.array, gradient.indices, gradient.values)
            return
        self.rows.append(gradient.copy().astype(sum_dtype(gradient.dtype), copy=False))
        # As many rows must have come as the sum can have, so that all sums together cost no more than the rows do.
        if sum(len(rows.indices) for rows in self.rows) > 2 * gradient.shape[0]:
            self.rows = [_summed(self.rows)]

    def gradient(self, factor: float = 1.0) -> Gradient | None:
        """The sum times a factor, in the gradients' dtype; rows come once each, in rising order. None of nothing."""
        if self._dtype is None:
            return None
        total = _summed(self.rows) if self.array is None else self.array
        return _times(total, factor).astype(self._dtype, copy=False)


def _summed(pieces: list[IndexedSlices]) -> IndexedSlices:
    values = np.concatenate([piece.values for piece in pieces])
    indices = np.concatenate([piece.indices for piece in pieces])
    return IndexedSlices(values, indices, pieces[0].shape, check_range=False).summed()


def _pairs(grads_and_vars: Iterable[GradientAndVariable]) -> list[GradientAndVariable]:
    """The pairs as a list; TypeError when they are anything else, such as gradients alone."""
    pairs = list(grads_and_vars)
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[1], BaseVariable)):
            raise TypeError(
                "grads_and_vars must be pairs (gradient, variable), as compute_gradients returns them, but one of them "
                f"is {_described(pair)}"
            )
    return pairs


def _described(given: object) -> str:
    if isinstance(given, tuple | list):
        return f"({', '.join(type(part).__name__ for part in given)})"
    return f"of type {type(given).__name__}"


def _check_norm(where: str, max_norm: float) -> None:
    if not max_norm > 0:
        raise ValueError(f"{where}: max_norm must be above 0, got {max_norm}")


def _shrink(norm: float, max_norm: float) -> float:
    """The factor that brings `norm` down to `max_norm`; 1 when it is below, or not finite."""
    return float(max_norm) / norm if max_norm < norm < math.inf else 1.0


def _norm(gradient: Gradient) -> float:
    """The L2 norm; where squares overflow or underflow, the largest element times the norm of all over it."""
    values = _values(gradient)
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    square = dot(values, values)
    least = values.size * float(np.finfo(square.dtype).tiny / np.finfo(square.dtype).eps)
    if least < square < math.inf:
        return math.sqrt(square)
    largest = float(np.max(np.abs(values), initial=0))
    if largest == 0 or not math.isfinite(largest):
        return largest
    scaled = values.astype(np.float64) / largest
    return largest * math.sqrt(dot(scaled, scaled))


def _times(gradient: Gradient, factor: float) -> Gradient:
    """The gradient times a number, which may have more digits than its dtype, or be too small for it."""
    if factor == 1:
        return gradient
    if isinstance(gradient, IndexedSlices):
        return gradient.with_values(np.asarray(_times(gradient.values, factor)))
    dtype = gradient.dtype
    if dtype.kind == "f" and (dtype.itemsize == 2 or abs(factor) < np.finfo(dtype).tiny):  # it would lose digits
        return np.multiply(gradient, factor, dtype=np.float64).astype(dtype)
    return gradient * float(factor)


def _values(gradient: Gradient) -> Array:
    """The elements that are not zero for certain, each once."""
    return gradient.summed().values if isinstance(gradient, IndexedSlices) else np.asarray(gradient)
