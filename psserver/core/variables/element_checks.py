"""What must hold of arrays that come with a message: shape, dtype, and that every element is finite.

Changes nothing. May import `pswire`'s pure half.
"""

from __future__ import annotations

import math

from pswire.errors import InvalidMessage, NotFinite, ShapeMismatch
from pswire.tensors.compression import Packed
from pswire.tensors.values import Array, IndexedSlices, TensorSpec, magnitude, not_finite


def check_tensor(spec: TensorSpec, array: Array | IndexedSlices | Packed, what: str) -> None:
    """Raises `ShapeMismatch` unless `array`, or the one that it has rows of, has the spec's shape and dtype."""
    if not spec.matches(array):
        raise ShapeMismatch(
            f"{what} for {spec.name!r} is {array.dtype.name}{list(array.shape)}, "
            f"the variable is {spec.dtype}{list(spec.shape)}"
        )


def check_finite(name: str, array: Array | Packed, what: str) -> float:
    """Raises `NotFinite` when an array has NaN or infinity, and `InvalidMessage` when a packed one has other faults.

    Returns a magnitude that no element is beyond.
    """
    if isinstance(array, Packed):
        try:
            return array.check()
        except FloatingPointError as error:
            raise non_finite(name, what, str(error)) from None
        except ValueError as error:
            raise InvalidMessage(f"{what} for {name!r} has {error}") from None
    found = magnitude(array)
    if not math.isfinite(found):
        bad = not_finite(array)
        if bad:
            raise non_finite(name, what, f"{bad:,} of {array.size:,} elements that are NaN or infinite")
    return found


def non_finite(name: str, what: str, fault: str) -> NotFinite:
    """The error for what is pushed or assigned for a variable, which has a fault."""
    hint = "; lower the learning rate, or clip gradients" if what == "gradient" else ""
    return NotFinite(f"{what} for {name!r} has {fault}: nothing was changed{hint}")
