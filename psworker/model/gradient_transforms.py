"""Gradient transforms between `compute_gradients` and `apply_gradients`: clip, scale, decay weights, accumulate.

A transform maps a list of pairs (gradient, variable) to another; any such function will do. A gradient is an array,
`IndexedSlices` or None, which stays None. Transforms here keep dtypes, write into no argument, add rows with equal
indices first, and raise TypeError for anything but pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from pswire.specs.initializers import truncated_normal
from pswire.tensors.sums import add_rows, dot, sum_dtype
from pswire.tensors.values import Array, IndexedSlices
from psworker.autodiff.ops.elementwise.activations import dropout_generator
from psworker.autodiff.ops.selection.indexing import RowSource
from psworker.autodiff.tape import no_grad
from psworker.autodiff.tensor import FoundGradient, Gradient
from psworker.model.base_variable import BaseVariable

GradientAndVariable: TypeAlias = tuple[FoundGradient, BaseVariable]
Transform: TypeAlias = Callable[[list[GradientAndVariable]], list[GradientAndVariable]]

__all__ = ["accumulate", "add_decayed_weights", "add_noise", "chain", "clip_by_global_norm", "clip_by_norm"]
__all__ += ["clip_by_value", "global_norm", "multiply", "per_variable", "scale"]


def chain(*transforms: Transform) -> Transform:
    """A transform that applies these in order; each is a function of a list of pairs.

        clipped = ps.chain(ps.accumulate(4), lambda pairs: ps.clip_by_global_norm(pairs, 5.0))
        optimizer = ps.Adam(0.001).with_transform(clipped)

    Raises TypeError if one is not a function, or when it returns None.
    """
    for transform in transforms:
        if not callable(transform):
            raise TypeError(
                f"chain takes functions of a list of pairs, got {transform!r}: give one with arguments as "
                "lambda pairs: psworker.scale(pairs, 0.5)"
            )

    def chained(pairs: list[GradientAndVariable]) -> list[GradientAndVariable]:
        for transform in transforms:
            pairs = transform(pairs)
            if pairs is None:
                raise TypeError(f"a transform of a chain returned None instead of a list of pairs: {transform!r}")
        return pairs

    return chained


def per_variable(
    grads_and_vars: Iterable[GradientAndVariable], function: Callable[[Gradient, BaseVariable], Gradient]
) -> list[GradientAndVariable]:
    """Replace each gradient by `function(gradient, variable)`, of the same shape; the dtype is kept."""

    def kept(gradient: Gradient, variable: BaseVariable) -> Gradient:
        result, dtype = function(gradient, variable), gradient.dtype
        return result.astype(dtype, copy=False) if isinstance(result, IndexedSlices) else np.asarray(result, dtype)

    return [(None if g is None else kept(g, variable), variable) for g, variable in _pairs(grads_and_vars)]


def clip_by_value(grads_and_vars: Iterable[GradientAndVariable], low: float, high: float) -> list[GradientAndVariable]:
    """Clip each element to `low` ... `high`; ValueError when `low` is above `high`."""
    if not low <= high:
        raise ValueError(f"clip_by_value: low must not be above high, got {low} and {high}")
    low, high = float(low), float(high)  # np.float64 would promote a float32 gradient

    def clipped(gradient: Gradient, _: BaseVariable) -> Gradient:
        if isinstance(gradient, IndexedSlices):
            gradient = gradient.summed()
            return gradient.with_values(np.clip(gradient.values, low, high))
        return np.asarray(np.clip(gradient, low, high))

    return per_variable(grads_and_vars, clipped)


def scale(grads_and_vars: Iterable[GradientAndVariable], factor: float) -> list[GradientAndVariable]:
    """Multiply each gradient by `factor`."""
    return per_variable(grads_and_vars, lambda g, _: _times(g, factor))


def multiply(
    grads_and_vars: Iterable[GradientAndVariable], multipliers: Mapping[BaseVariable | str, float]
) -> list[GradientAndVariable]:
    """Multiply the gradients of some variables, each named by itself or by its full name; others are unchanged.

    Raises ValueError for a multiplier of a variable that is in none of the pairs.
    """
    pairs = _pairs(grads_and_vars)
    by_name = {key.name if isinstance(key, BaseVariable) else key: factor for key, factor in multipliers.items()}
    names = [variable.name for _, variable in pairs]
    unknown = [name for name in by_name if name not in names]
    if unknown:
        raise ValueError(
            f"multiply: there is no gradient of {', '.join(map(repr, unknown))} to be multiplied: choose from "
            f"{', '.join(names) or 'no variables'}"
        )
    return per_variable(pairs, lambda g, variable: _times(g, by_name.get(variable.name, 1)))


def add_noise(grads_and_vars: Iterable[GradientAndVariable], stddev: float) -> list[GradientAndVariable]:
    """Add independent noise to each element: normal around 0, drawn again beyond two standard deviations.

    For `IndexedSlices`, to its rows only. As in `ops.dropout`, the generator is seeded by `psworker.set_random_seed`,
    different in each worker. ValueError unless `stddev`, before truncation, is a finite number from 0 up. Source: A.
    Neelakantan et al., "Adding Gradient Noise Improves Learning for Very Deep Networks", 2015 (arXiv:1511.06807), with
    the truncation of tf.contrib.layers.optimize_loss.
    """
    if not 0 <= stddev < math.inf:
        raise ValueError(f"add_noise: stddev must be a finite number from 0 up, got {stddev}")
    draw = truncated_normal(float(stddev))

    def noisy(gradient: Gradient, _: BaseVariable) -> Gradient:
        if isinstance(gradient, IndexedSlices):
            gradient = gradient.summed()
            return gradient.with_values(gradient.values + draw(gradient.values.shape, dropout_generator()))
        return np.asarray(gradient + draw(gradient.shape, dropout_generator()))

    return per_variable(grads_and_vars, noisy)


def clip_by_norm(grads_and_vars: Iterable[GradientAndVariable], max_norm: float) -> list[GradientAndVariable]:
    """Scale each gradient whose L2 norm is above `max_norm` down to it; ValueError unless `max_norm` is above 0.

    A gradient with NaN or infinity is unchanged: the server rejects it and names its variable.
    """
    _check_norm("clip_by_norm", max_norm)
    return per_variable(grads_and_vars, lambda g, _: _times(g, _shrink(_norm(g), max_norm)))


def clip_by_global_norm(grads_and_vars: Iterable[GradientAndVariable], max_norm: float) -> list[GradientAndVariable]:
    """Scale all gradients by max_norm / max(global norm, max_norm); ValueError unless `max_norm` is above 0.

    With NaN or infinity in one of them all are unchanged: the server rejects that one and names its variable.

    Source: R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of training recurrent neural networks", ICML 2013,
    algorithm 1.
    """
    _check_norm("clip_by_global_norm", max_norm)
    pairs = _pairs(grads_and_vars)
    factor = _shrink(global_norm(pairs), max_norm)
    return pairs if factor == 1 else scale(pairs, factor)


def global_norm(grads_and_vars: Iterable[GradientAndVariable]) -> float:
    """The L2 norm of all gradients together, sqrt(sum of all squares), without overflow or underflow of squares."""
    return math.hypot(*(_norm(g) for g, _ in _pairs(grads_and_vars) if g is not None))


def add_decayed_weights(grads_and_vars: Iterable[GradientAndVariable], rate: float) -> list[GradientAndVariable]:
    """Add `rate` times its variable to each gradient, the gradient of the penalty rate / 2 * ||w||^2.

    For `IndexedSlices`, to its rows only. The weights are the worker's replica; rows of a `Table` are fetched. Source:
    A. Krogh, J. Hertz, "A Simple Weight Decay Can Improve Generalization", NIPS 1991.
    """
    rate = float(rate)

    @no_grad()  # rows that are fetched are no lookup of the model
    def decayed(gradient: Gradient, variable: BaseVariable) -> Gradient:
        if not isinstance(gradient, IndexedSlices):
            return gradient + rate * variable.value
        gradient = gradient.summed()
        indices = gradient.indices.astype(np.int64, copy=False)
        weights = variable.fetch(indices) if isinstance(variable, RowSource) else variable.value[indices]
        return gradient.with_values(gradient.values + rate * weights)

    return per_variable(grads_and_vars, decayed)


class accumulate:  # noqa: N801 - called like the functions beside it
    """Mean gradients of `n` steps, as of a batch `n` times as large; only every n-th step pushes.

        accumulated = ps.accumulate(4)
        for batch in session.batches(...):
            pairs = accumulated(optimizer.compute_gradients(loss(batch)))   # [], [], [], the mean of four
            optimizer.apply_gradients(pairs)                                # which pushes nothing for []

    `count` steps, fewer than `n`, are in `totals`, the `Total` of each variable. ValueError if `n` is below 1.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"accumulate: n must be 1 or more, got {n}")
        self.n, self.count = n, 0
        self.totals: dict[BaseVariable, Total] = {}

    def __call__(self, grads_and_vars: Iterable[GradientAndVariable]) -> list[GradientAndVariable]:
        """Accumulate the pairs of a step; return the mean after every n-th step, otherwise []."""
        for gradient, variable in _pairs(grads_and_vars):
            self.totals.setdefault(variable, Total()).add(gradient)
        self.count += 1
        if self.count < self.n:
            return []
        totals, self.totals, self.count = self.totals, {}, 0
        return [(total.gradient(1 / self.n), variable) for variable, total in totals.items()]


class Total:
    """The sum of gradients of one variable, in memory of its own; float16 is added in float32 and rounded once.

    Attributes:
        array: the sum, once an array was among the gradients; otherwise None.
        rows: row gradients that are not in `array`, copied; summed when there are twice as many as the variable has.
    """

    def __init__(self) -> None:
        self.array: Array | None = None
        self.rows: list[IndexedSlices] = []
        self._dtype: np.dtype[Any] | None = None

    def add(self, gradient: Gradient | None) -> None:
        """Add a gradient; None adds nothing."""
        if gradient is None:
            return
        if not isinstance(gradient, IndexedSlices):
            gradient = np.asarray(gradient)
        self._dtype, dtype = gradient.dtype, sum_dtype(gradient.dtype)
        if isinstance(gradient, IndexedSlices):
            if self.array is not None:
                add_rows(self.array, gradient.indices, gradient.values)
                return
            self.rows.append(gradient.copy().astype(dtype, copy=False))
            # Summing only after this many rows keeps the total cost linear in the number of rows.
            if sum(len(rows.indices) for rows in self.rows) > 2 * gradient.shape[0]:
                self.rows = [_summed(self.rows)]
        elif self.array is not None:
            self.array += gradient
        else:
            self.array = np.array(gradient, dtype, order="C")
            for rows in self.rows:
                add_rows(self.array, rows.indices, rows.values)
            self.rows = []

    def gradient(self, factor: float = 1.0) -> Gradient | None:
        """The sum times a factor, in the gradients' dtype, with distinct ascending rows; None if nothing was added."""
        if self._dtype is None:
            return None
        total = _summed(self.rows) if self.array is None else self.array
        return _times(total, factor).astype(self._dtype, copy=False)


def _summed(pieces: list[IndexedSlices]) -> IndexedSlices:
    values = np.concatenate([piece.values for piece in pieces])
    indices = np.concatenate([piece.indices for piece in pieces])
    return IndexedSlices(values, indices, pieces[0].shape, check_range=False).summed()


def _pairs(grads_and_vars: Iterable[GradientAndVariable]) -> list[GradientAndVariable]:
    """The pairs as a list; TypeError for anything else, such as gradients without variables."""
    pairs = list(grads_and_vars)
    for pair in pairs:
        several = isinstance(pair, tuple | list)
        if not (several and len(pair) == 2 and isinstance(pair[1], BaseVariable)):
            given = f"({', '.join(type(x).__name__ for x in pair)})" if several else f"of type {type(pair).__name__}"
            raise TypeError(
                "grads_and_vars must be pairs (gradient, variable), as compute_gradients returns them, but one of them "
                f"is {given}"
            )
    return pairs


def _check_norm(where: str, max_norm: float) -> None:
    if not max_norm > 0:
        raise ValueError(f"{where}: max_norm must be above 0, got {max_norm}")


def _shrink(norm: float, max_norm: float) -> float:
    """The factor that scales `norm` down to `max_norm`; 1 when it is below, or not finite."""
    return float(max_norm) / norm if max_norm < norm < math.inf else 1.0


def _norm(gradient: Gradient) -> float:
    """The L2 norm; where squares overflow or underflow, computed relative to the largest element."""
    values = gradient.summed().values if isinstance(gradient, IndexedSlices) else np.asarray(gradient)
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
    """The gradient times a number that its dtype may not be able to represent exactly."""
    if factor == 1:
        return gradient
    if isinstance(gradient, IndexedSlices):
        return gradient.with_values(np.asarray(_times(gradient.values, factor)))
    dtype = gradient.dtype
    if dtype.kind == "f" and (dtype.itemsize == 2 or abs(factor) < np.finfo(dtype).tiny):  # would lose digits
        return np.multiply(gradient, factor, dtype=np.float64).astype(dtype)
    return gradient * float(factor)
