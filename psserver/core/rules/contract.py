"""What an update rule is: the contract between the store, which calls it, and the files beside this one.

Holds no arithmetic and knows no optimizer. May import the limits and `pswire`'s pure half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from psserver.core.rules.limits import Limits
from pswire.tensors.values import Array, IndexedSlices


@dataclass(frozen=True, slots=True)
class Step:
    """When an update takes place.

    Attributes:
        number: of this update of this variable, from 1, whichever rows the updates before have touched.
        global_step: the pushes that the shard has applied before this one, to whichever variables.
        learning_rate: what the spec's learning rate is at this update; of no account if it has none.
    """

    number: int
    global_step: int
    learning_rate: float


class Rule(Protocol):
    """What an update does, for the hyperparameters of one spec. Has no state of its own: that is in the slots.

    The same calls give bit-identical arrays. Numbers never raise: what overflows becomes infinite, silently;
    `growth` says when nothing can.
    """

    def slots(self, value: Array) -> dict[str, Array]:
        """New slots for a variable, by name, with their first value; of its shape and dtype (float32 for float16).

        Raises:
            InvalidMessage: the variable's dtype is none of float16, float32 and float64.
        """
        ...

    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: Step) -> None:
        """Applies a gradient to `value` and `slots`, in place.

        Args:
            value: C-contiguous, of any shape.
            slots: as `slots(value)` made them, then changed by the updates before.
            gradient: shape and dtype of `value`, any strides. Borrowed: never written into, never kept.
            step: when this takes place.
        """
        ...

    def sparse(self, value: Array, slots: dict[str, Array], rows: IndexedSlices, step: Step) -> None:
        """Applies the rows of a gradient to `value` and `slots`, in place.

        Lazy: rows that are not named stay as they are, in the slots too, so that a momentum or moment does not decay
        where there is no gradient. Those that are named are updated as `dense` would.

        Args:
            value: C-contiguous, of rank 1 at least.
            slots: as in `dense`.
            rows: indices of any integer dtype, each once, rising and within `value`; values of its dtype. Borrowed.
            step: when this takes place.
        """
        ...

    def growth(self, rate: float, limits: Limits) -> float:
        """The share of the way from `limits.state` to `limits.most` that an update can go at most; over 1: no limit.

        Of a variable that was settled and has had ordinary updates only since, with growths of less than 1 in sum: then
        no element of value and slots, and nothing on the way to them, becomes infinite or NaN.

        Args:
            rate: the largest learning rate.
            limits: of the variable's dtype; no element of the gradient is beyond `limits.gradient`.
        """
        ...

    def settled(self, value: Array, slots: dict[str, Array], limits: Limits) -> bool:
        """Whether all elements, or those of the rows that are given, are within the limits; looks at each."""
        ...
