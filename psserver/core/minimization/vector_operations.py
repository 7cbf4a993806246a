"""The arithmetic of vectors on a shard (`pswire.specs.vectors`): the operations of a message on one variable's arrays.

All operations are element by element, or sums: so a message goes through the arrays once, stretch by stretch, which
stay in the processor's cache. Elements are computed in float64 and rounded to the vector's dtype. Sums are compensated
(T. Ogita, S. M. Rump, S. Oishi, *Accurate Sum and Dot Product*, SIAM J. Sci. Comput. 26, 2005, algorithms 3.1 and 4.3),
so that the result does not depend on how a model is distributed, but in the rarest cases in the last bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from pswire.specs.vectors import (
    MEASURES,
    Axpy,
    Copy,
    Dot,
    Fill,
    KeepSigns,
    MaxAbs,
    Norm1,
    Operation,
    PseudoGradient,
    Scale,
    combined,
    rounded,
)
from pswire.tensors.values import Array

#: Elements that are processed at a time, and sums that are accumulated beside each other.
STRETCH, LANES = 1 << 16, 1 << 13


class CompensatedSum:
    """A sum of float64 with the rounding errors of its additions."""

    def __init__(self, size: int) -> None:
        lanes = max(1, min(size, LANES))
        self._sums, self._errors = np.zeros(lanes), np.zeros(lanes)

    def add(self, terms: Array) -> None:
        """Add an array of any length."""
        lanes = len(self._sums)
        for start in range(0, len(terms), lanes):
            stretch = terms[start : start + lanes]
            sums, errors = self._sums[: len(stretch)], self._errors[: len(stretch)]
            total, error = _two_sum(sums, stretch)
            sums[:] = total
            errors += error

    def pair(self) -> tuple[float, float]:
        """The rounded sum, and what is missing in it."""
        sums, errors = self._sums, self._errors
        while len(sums) > 64:
            half = len(sums) // 2
            total, error = _two_sum(sums[:half], sums[half : 2 * half])
            sums, errors = np.append(total, sums[2 * half :]), np.append(errors, error)
        errors = errors[np.isfinite(errors) & (errors != 0)]  # of infinite sums they are not numbers
        return rounded([*sums.tolist(), *errors.tolist()])


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """A + b as the rounded sum and its error, exactly (algorithm 3.1)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@dataclass(slots=True)
class Results:
    """The results of a message, for all its variables on this shard: two numbers for each in `pairs`, in the end.

    `parts` variables have a part of them; whichever is ready last adds them up, in the order of the variables.
    """

    operations: Sequence[Operation]
    parts: int
    pairs: list[float]
    _found: list[list[tuple[float, float]]]
    _ready: Iterator[int]

    @classmethod
    def of(cls, operations: Sequence[Operation], parts: int) -> "Results":
        """Results to come."""
        measures = [one for one in operations if isinstance(one, MEASURES)]
        return cls(measures, parts, [0.0, 0.0] * len(measures), [[] for _ in range(parts)], count(1))

    def put(self, part: int, found: list[tuple[float, float]]) -> None:
        """Note those of one variable. Any thread."""
        self._found[part] = found
        if next(self._ready) == self.parts:  # atomic
            for place, operation in enumerate(self.operations):
                pairs = [mine[place] for mine in self._found]
                self.pairs[2 * place : 2 * place + 2] = combined(operation, pairs)


@np.errstate(all="ignore")
def run(operations: Sequence[Operation], vectors: Mapping[str, Array]) -> list[tuple[float, float]]:
    """Apply operations to flat arrays of the same size; the results of those that have one. Raises nothing."""
    size = next(iter(vectors.values())).size
    steps = [_Step(operation, size) for operation in operations]
    for start in range(0, size, STRETCH):
        stretch = {name: array[start : start + STRETCH] for name, array in vectors.items()}
        for step in steps:
            step.apply(stretch)
    return [step.result() for step in steps if isinstance(step.operation, MEASURES)]


class _Step:
    """One operation on one stretch after the other."""

    def __init__(self, operation: Operation, size: int) -> None:
        self.operation = operation
        self._sum = CompensatedSum(size) if isinstance(operation, Dot | Norm1) else None
        self._largest = 0.0

    def apply(self, v: Mapping[str, Array]) -> None:
        match self.operation:
            case Dot(one, other):
                self._add(np.multiply(v[one], v[other], dtype=np.float64))
            case Norm1(one):
                self._add(np.abs(v[one]).astype(np.float64))
            case MaxAbs(one):
                self._largest = float(np.maximum(self._largest, np.max(np.abs(v[one]))))
            case operation:
                _CHANGES[type(operation)](operation, v)

    def _add(self, terms: Array) -> None:
        assert self._sum is not None
        self._sum.add(terms)

    def result(self) -> tuple[float, float]:
        return (self._largest, 0.0) if self._sum is None else self._sum.pair()


def _fill(operation: Fill, v: Mapping[str, Array]) -> None:
    v[operation.vector].fill(operation.value)


def _copy(operation: Copy, v: Mapping[str, Array]) -> None:
    np.copyto(v[operation.vector], v[operation.source])


def _scale(operation: Scale, v: Mapping[str, Array]) -> None:
    vector = v[operation.vector]
    np.multiply(vector, np.float64(operation.factor), out=vector, casting="same_kind")


def _axpy(operation: Axpy, v: Mapping[str, Array]) -> None:
    vector = v[operation.vector]
    added = np.multiply(v[operation.source], np.float64(operation.factor))
    np.add(vector, added, out=vector, casting="same_kind")


def _pseudo_gradient(operation: PseudoGradient, v: Mapping[str, Array]) -> None:
    point, gradient, l1 = v[operation.point], v[operation.gradient].astype(np.float64), operation.l1
    at_zero = np.sign(gradient) * np.maximum(np.abs(gradient) - l1, 0.0)
    v[operation.vector][...] = np.where(point == 0, at_zero, gradient + l1 * np.sign(point))


def _keep_signs(operation: KeepSigns, v: Mapping[str, Array]) -> None:
    vector, signs = v[operation.vector], np.sign(v[operation.source])
    if operation.otherwise:
        signs = np.where(signs == 0, np.sign(v[operation.otherwise]), signs)
    vector[np.sign(vector) != signs] = 0.0


_CHANGES: dict[type, Callable[[Any, Mapping[str, Array]], None]] = {
    Fill: _fill,
    Copy: _copy,
    Scale: _scale,
    Axpy: _axpy,
    PseudoGradient: _pseudo_gradient,
    KeepSigns: _keep_signs,
}
