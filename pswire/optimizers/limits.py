"""Bounds on magnitudes within which updates are known to be finite without checking their results.

An update runs after its step has decided on it, so a result that is not finite would be found too late to refuse the
push. Therefore every rule bounds how far an ordinary update can bring a variable (`Rule.growth`); any other update is
computed in the step, on copies (`psserver.core.variables.updates`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pswire.errors import NotFinite
from pswire.tensors.values import Array, magnitude, not_finite


@dataclass(frozen=True, slots=True)
class Limits:
    """Magnitudes of ordinary updates for a dtype.

    Attributes:
        gradient: of an ordinary update, after compensation for delay, which may add half of it.
        state: of the elements of a settled variable and its slots; not below `gradient`.
        squares: of the elements of a slot that sums squares; not below the square of `gradient`.
        maximum: no element of a settled variable exceeds it by ordinary updates whose growths add up to less than 1.
            Far enough below the dtype's largest number for what rounding adds, and for sums of a few such elements.
        tiny: the least normal number.
    """

    gradient: float
    state: float
    squares: float
    maximum: float
    tiny: float


#: By dtype. float16 has none: its range is too small, so all its updates are guarded.
LIMITS = {
    "float32": Limits(1e10, 1e16, 1e30, 1e37, float(np.finfo(np.float32).tiny)),
    "float64": Limits(1e80, 1e120, 1e240, 1e306, float(np.finfo(np.float64).tiny)),
}

#: The largest growth of an ordinary update. A variable is guarded from a sum of 1/2 on; a step may make as many updates
#: of it before that is seen as there are workers with a push that is held.
MAX_ORDINARY_GROWTH = 1e-3

#: A variable is guarded when its growth reaches this value.
GUARDED = 0.5


def decayed_sum(decay: float) -> float:
    """The sum of all powers of `decay`; infinite if `decay` could round to 1 in float32."""
    return 1 / (1 - decay) if decay < 1 - 1e-6 else math.inf


def within(array: Array, most: float) -> bool:
    """Whether no element has a larger magnitude; False if one is NaN."""
    return magnitude(array) <= most or bool(array.max() <= most and array.min() >= -most)


def fault_of(value: Array, slots: Mapping[str, Array]) -> str:
    """The number of elements that are not finite in the first array that has any, and its slot; empty if none has."""
    for name, array in (("", value), *slots.items()):
        bad = not_finite(array)
        if bad:
            return f"{bad:,} of {array.size:,} elements" + (f" of its slot {name!r}" if name else "")
    return ""


def refused(name: str, fault: str) -> NotFinite:
    """The error for an update of the variable `name` whose result has this fault (`fault_of`)."""
    return NotFinite(
        f"the update of {name!r} would make NaN or infinity of {fault}: nothing was changed; lower the learning rate, "
        "or clip gradients"
    )
