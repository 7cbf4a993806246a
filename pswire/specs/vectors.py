"""Operations on vectors of the model's shape, which lie on the shards beside the variables. Pure data.

A vector has a part for each trainable variable, of its shape and dtype. `VARIABLES` are the variables themselves, and
`GRADIENT` is the sum of the gradients that workers have pushed for the present point. Others are made by `Fill` and
`Copy`. Sums are accumulated in float64 and compensated, so that their results do not depend on the number of shards but
for rounding.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np

from pswire.tensors.sums import exact_sum

#: The vector of the variables' values, and the gradient there.
VARIABLES, GRADIENT = "variables", "gradient"

_NAME = re.compile("[a-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class Fill:
    """All elements become `value`."""

    vector: str
    value: float


@dataclass(frozen=True, slots=True)
class Copy:
    """`vector` becomes equal to `source`."""

    vector: str
    source: str


@dataclass(frozen=True, slots=True)
class Scale:
    """`vector` is multiplied by `factor`."""

    vector: str
    factor: float


@dataclass(frozen=True, slots=True)
class Axpy:
    """`factor` times `source` is added to `vector`."""

    vector: str
    factor: float
    source: str


@dataclass(frozen=True, slots=True)
class Dot:
    """Result: the sum of the products of the elements."""

    vector: str
    other: str


@dataclass(frozen=True, slots=True)
class Norm1:
    """Result: the sum of the magnitudes."""

    vector: str


@dataclass(frozen=True, slots=True)
class MaxAbs:
    """Result: the largest magnitude; NaN if an element is not a number."""

    vector: str


@dataclass(frozen=True, slots=True)
class PseudoGradient:
    """`vector` becomes the gradient of a function plus `l1` times the 1-norm of `point`; where that has none, its
    derivative with the smallest magnitude of those to both sides.

    Source: G. Andrew, J. Gao, *Scalable Training of L1-Regularized Log-Linear Models*, ICML 2007, equation 4.
    """

    vector: str
    point: str
    gradient: str
    l1: float


@dataclass(frozen=True, slots=True)
class KeepSigns:
    """Elements of `vector` whose sign is not that of `source` become 0 (equation 6 of the same).

    Where `source` is 0, `otherwise` has the sign; without it, the element becomes 0.
    """

    vector: str
    source: str
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Drop:
    """All vectors but the variables' values are dropped: the first of its operations. It has no vector."""

    vector: str = VARIABLES


Operation: TypeAlias = Fill | Copy | Scale | Axpy | Dot | Norm1 | MaxAbs | PseudoGradient | KeepSigns | Drop

#: Operations with a result, which change nothing.
MEASURES = (Dot, Norm1, MaxAbs)


def vectors_read(operation: Operation) -> list[str]:
    """The vectors that must be there before an operation."""
    found = [getattr(operation, one.name) for one in fields(operation) if one.type is str or one.type == "str"]
    if isinstance(operation, Fill | Copy | PseudoGradient | Drop):
        found = found[1:]
    return [name for name in found if name]


def check_operation(operation: Operation) -> None:
    """Raise `ValueError` for a name that is none, or a number that is not finite."""
    for one in fields(operation):
        value = getattr(operation, one.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{type(operation).__name__} needs a finite {one.name}, got {value}")
        if isinstance(value, str) and not _NAME.fullmatch(value) and (value or one.name != "otherwise"):
            raise ValueError(f"a vector has a name of small letters, digits and hyphens, got {value!r:.80}")


def combined(operation: Operation, parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The result of an operation on several parts of vectors, each as two numbers: the largest, or the sum.

    The sum is rounded, and the rest is beside it; that is 0 if the sum is infinite or not a number.
    """
    if isinstance(operation, MaxAbs):
        return float(np.max([largest for largest, _ in parts])), 0.0
    return rounded([number for pair in parts for number in pair])


def rounded(terms: Sequence[float]) -> tuple[float, float]:
    """The rounded sum of numbers and the rest, itself rounded; the rest is 0 if the sum is infinite or not a number."""
    total = exact_sum(terms)
    return total, exact_sum([*terms, -total]) if math.isfinite(total) else 0.0
