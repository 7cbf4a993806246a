"""What update rules share: the loop over a block of elements at a time, in place, and how rows are updated.

Knows no formula and no optimizer. May import numpy and `pswire`'s pure half.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from pswire.errors import InvalidMessage
from pswire.values import Array, IndexedSlices

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


class ElementWise(ABC):
    """The update of rows, for every rule in which an element of value and slots depends on nothing but itself.

    For such a rule some rows are an array like any other: its `dense` is all that there is to write.
    """

    @abstractmethod
    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: int, learning_rate: float) -> None:
        """As in `Rule`."""

    def sparse(
        self, value: Array, slots: dict[str, Array], rows: IndexedSlices, step: int, learning_rate: float
    ) -> None:
        """Updates the rows as `dense` would if there were no others, some of them at a time.

        Rows that lie side by side are updated where they are, others in a copy of them that stays in the cache.
        """
        at_once = max(1, BLOCK // max(1, math.prod(value.shape[1:])))
        for start in range(0, len(rows.indices), at_once):
            index = rows.indices[start : start + at_once].astype(np.intp)
            gradient = rows.values[start : start + at_once]
            if index[-1] - index[0] == len(index) - 1:
                run = slice(index[0], index[-1] + 1)
                self.dense(value[run], {name: slot[run] for name, slot in slots.items()}, gradient, step, learning_rate)
                continue
            part = value.take(index, axis=0)
            parts = {name: slot.take(index, axis=0) for name, slot in slots.items()}
            self.dense(part, parts, gradient, step, learning_rate)
            value[index] = part
            for name, slot in slots.items():
                slot[index] = parts[name]
