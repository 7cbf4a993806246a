"""Update rules: what a gradient does to a variable and its slots. One rule a file, found by its spec.

To add one: its hyperparameters, formula and source as a dataclass in `pswire/specs.py`; `rules/<name>.py` with a
class that is a `Rule`; a row in `RULES` here; a row in `RULES_UNDER_TEST` in `tests/unit/test_rules.py`, with the
formula written once more in float64. `Rule` is matched by its methods: a rule's file does not import this one, but
`kernels`. A rule that updates each element by itself is a `kernels.ElementWise`, and has no code of its own for rows.
May import `pswire`'s pure half and numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from psserver.core.rules.adagrad import AdagradRule
from psserver.core.rules.adam import AdamRule
from psserver.core.rules.gradient_descent import GradientDescentRule
from psserver.core.rules.momentum import MomentumRule
from psserver.core.rules.moving_average import MovingAverageRule
from pswire import specs
from pswire.errors import InvalidMessage
from pswire.values import Array, IndexedSlices


class Rule(Protocol):
    """What an update does, for the hyperparameters of one spec. Has no state of its own: that is in the slots.

    The same calls give bit-identical arrays. Numbers never raise: what overflows becomes infinite, silently.
    """

    def slots(self, value: Array) -> dict[str, Array]:
        """New slots for a variable, by name, with their first value; of its shape and dtype (float32 for float16).

        Raises:
            InvalidMessage: the variable's dtype is none of float16, float32 and float64.
        """
        ...

    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: int, learning_rate: float) -> None:
        """Applies a gradient to `value` and `slots`, in place.

        Args:
            value: C-contiguous, of any shape.
            slots: as `slots(value)` made them, then changed by the updates before.
            gradient: shape and dtype of `value`, any strides. Borrowed: never written into, never kept.
            step: the number of this update of this variable, from 1.
            learning_rate: what the spec's learning rate is at this update; of no account if it has none.
        """
        ...

    def sparse(
        self, value: Array, slots: dict[str, Array], rows: IndexedSlices, step: int, learning_rate: float
    ) -> None:
        """Applies the rows of a gradient to `value` and `slots`, in place.

        Lazy: rows that are not named stay as they are, in the slots too, so that a momentum or moment does not decay
        where there is no gradient. Those that are named are updated as `dense` would.

        Args:
            value: C-contiguous, of rank 1 at least.
            slots: as in `dense`.
            rows: indices of any integer dtype, each once, rising and within `value`; values of its dtype. Borrowed.
            step: the number of this update of this variable, from 1, whichever rows the updates before have touched.
            learning_rate: as in `dense`.
        """
        ...


#: Every rule by the kind of its spec.
RULES: dict[str, Callable[[Any], Rule]] = {
    specs.GradientDescent.kind: GradientDescentRule,
    specs.Momentum.kind: MomentumRule,
    specs.Adagrad.kind: AdagradRule,
    specs.Adam.kind: AdamRule,
    specs.MovingAverage.kind: MovingAverageRule,
}

if RULES.keys() != specs.UPDATES.keys():
    unmatched = ", ".join(sorted(RULES.keys() ^ specs.UPDATES.keys()))
    raise ImportError(f"every spec needs a rule and every rule a spec, but {unmatched} has only one of them")


def rule_for(spec: specs.UpdateSpec) -> Rule:
    """The rule that does what `spec` says; a subclass of a spec has the rule of its kind.

    Raises:
        InvalidMessage: there is no rule for this kind.
    """
    if spec.kind not in RULES:
        raise InvalidMessage(f"no update rule for optimizer {spec.kind!r}; there are {', '.join(sorted(RULES))}")
    return RULES[spec.kind](spec)
