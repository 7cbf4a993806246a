"""The loop that every update rule shares: a block of elements at a time, in place, with a scratch buffer.

It knows no formula and no optimizer. May import numpy and `pswire`'s pure half.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from pswire.errors import InvalidMessage
from pswire.values import Array

#: Elements in a block: what a rule works on should stay in the cache from one numpy call to the next.
BLOCK = 1 << 16

#: The dtypes that a rule can update, each with the dtype that it computes in and its slots have: in a float16 slot
#: the square of a small gradient would be zero.
COMPUTE_DTYPES: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(stored): np.dtype(computed)
    for stored, computed in (("float16", "float32"), ("float32", "float32"), ("float64", "float64"))
}

# "no_broadcast": an array of another shape is an error, not one more way to fill the blocks.
_Access = list[Literal["readonly", "readwrite", "no_broadcast"]]
_READ: _Access = ["readonly", "no_broadcast"]
_CHANGED: _Access = ["readwrite", "no_broadcast"]


def check_dtype(value: Array) -> None:
    """Refuses a variable that cannot follow a gradient.

    Raises:
        InvalidMessage: its dtype is none of float16, float32 and float64.
    """
    if value.dtype not in COMPUTE_DTYPES:
        raise InvalidMessage(
            f"an optimizer can update a variable of {', '.join(dtype.name for dtype in COMPUTE_DTYPES)}, "
            f"not of {value.dtype.name}: register it with one of them, or without an optimizer"
        )


@np.errstate(all="ignore")
def slot_like(value: Array, fill: float = 0.0) -> Array:
    """A new slot of the shape of `value`, each element `fill`, in the dtype that its rule computes in.

    Raises as `check_dtype` does.
    """
    check_dtype(value)
    return np.full(value.shape, fill, COMPUTE_DTYPES[value.dtype])


def positive(epsilon: float, value: Array) -> float:
    """`epsilon`, or if that rounds to zero where `value` is computed, the least normal number: 0 / 0 would be NaN."""
    return max(epsilon, float(np.finfo(COMPUTE_DTYPES[value.dtype]).tiny))


def blocks(value: Array, gradient: Array, *slots: Array) -> Iterator[tuple[Array, Array, Array, list[Array]]]:
    """Walks through an update: yields flat blocks of (value, gradient, scratch, slots), all of one length.

    What is written into the blocks of value and slots is in the arrays once the loop has asked for the next one.
    The block of the gradient is for reading; the scratch holds whatever was there. float16 is handed out as
    float32, and rounded once a block. No array is ever copied as a whole, whatever its strides.

    Args:
        value: of float16, float32 or float64, any shape.
        gradient: of the same shape and dtype; may be read-only.
        slots: of the shape of `value`, as `slot_like` made them.
    """
    compute = COMPUTE_DTYPES[value.dtype]
    scratch = np.empty(min(value.size, BLOCK), compute)
    with np.nditer(
        (value, gradient, *slots),
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[_CHANGED, _READ, *[_CHANGED] * len(slots)],
        op_dtypes=[compute] * (2 + len(slots)),
        casting="same_kind",
        order="C",
        buffersize=BLOCK,
    ) as walk:
        for w, g, *parts in walk:
            yield w, g, scratch[: g.size], parts
