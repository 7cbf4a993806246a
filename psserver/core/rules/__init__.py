"""Update rules: what a gradient does to a variable and its slots. One rule a file, found by the optimizer's spec.

To add one: its hyperparameters, formula and source as a dataclass in `pswire/specs.py`; `rules/<name>.py` with a
class that is a `Rule`; a row in `RULES` here; a row in `RULES_UNDER_TEST` in `tests/unit/test_rules.py`, with the
formula written once more in float64. `Rule` is matched by its methods: a rule's file does not import this one, but
`kernels`. May import `pswire`'s pure half and numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from psserver.core.rules.adagrad import AdagradRule
from psserver.core.rules.adam import AdamRule
from psserver.core.rules.gradient_descent import GradientDescentRule
from psserver.core.rules.momentum import MomentumRule
from pswire import specs
from pswire.errors import InvalidMessage
from pswire.values import Array


class Rule(Protocol):
    """What an update does, for one optimizer's hyperparameters. Has no state of its own: that is in the slots.

    The same calls give bit-identical arrays. Numbers never raise: what overflows becomes infinite, silently.
    """

    def slots(self, value: Array) -> dict[str, Array]:
        """New slots for a variable, by name, with their first value; of its shape and dtype (float32 for float16).

        Raises:
            InvalidMessage: the variable's dtype is none of float16, float32 and float64.
        """
        ...

    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: int) -> None:
        """Applies a gradient to `value` and `slots`, in place.

        Args:
            value: C-contiguous, of any shape.
            slots: as `slots(value)` made them, then changed by the updates before.
            gradient: shape and dtype of `value`, any strides. Borrowed: never written into, never kept.
            step: the number of this update of this variable, from 1.
        """
        ...


#: Every rule by the kind of its spec.
RULES: dict[str, Callable[[Any], Rule]] = {
    specs.GradientDescent.kind: GradientDescentRule,
    specs.Momentum.kind: MomentumRule,
    specs.Adagrad.kind: AdagradRule,
    specs.Adam.kind: AdamRule,
}

if RULES.keys() != specs.OPTIMIZERS.keys():
    unmatched = ", ".join(sorted(RULES.keys() ^ specs.OPTIMIZERS.keys()))
    raise ImportError(f"every spec needs a rule and every rule a spec, but {unmatched} has only one of them")


def rule_for(spec: specs.OptimizerSpec) -> Rule:
    """The rule that does what `spec` says; a subclass of a spec has the rule of its kind.

    Raises:
        InvalidMessage: there is no rule for this kind.
    """
    if spec.kind not in RULES:
        raise InvalidMessage(f"no update rule for optimizer {spec.kind!r}; there are {', '.join(sorted(RULES))}")
    return RULES[spec.kind](spec)
