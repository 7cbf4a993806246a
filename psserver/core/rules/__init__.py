"""Update rules: what a gradient does to a variable and its slots. One rule a file, found by its spec.

To add one: its hyperparameters, formula, source and slots as a dataclass in `pswire/specs`; `rules/<name>.py` with a
class that is a `Rule`; a row in `RULES` here; a row in `RULES_UNDER_TEST` in
`tests/unit/pswire/optimizers/rules_under_test.py`, with the
formula written once more in float64. `Rule` is matched by its methods: a rule's file imports `contract` for its types,
and `kernels`. A rule that updates each element by itself is a `kernels.ElementWise`: no code of its own for rows, and,
if it is a hot one, a loop in `fused`. May import `pswire`'s pure half and numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psserver.core.rules.adagrad import AdagradRule
from psserver.core.rules.adagrad_decay import AdagradDecayRule
from psserver.core.rules.adam import AdamRule
from psserver.core.rules.adamw import AdamWRule
from psserver.core.rules.contract import Rule, Step
from psserver.core.rules.ftrl import FtrlRule
from psserver.core.rules.gradient_descent import GradientDescentRule
from psserver.core.rules.kernels import ElementWise
from psserver.core.rules.lamb import LambRule
from psserver.core.rules.momentum import MomentumRule
from psserver.core.rules.moving_average import MovingAverageRule
from psserver.core.rules.rmsprop import RMSPropRule
from pswire import optimizers
from pswire.errors import InvalidMessage

__all__ = ["RULES", "Rule", "Step", "loop_name", "rule_for"]


#: Every rule by the kind of its spec.
RULES: dict[str, Callable[[Any], Rule]] = {
    optimizers.GradientDescent.kind: GradientDescentRule,
    optimizers.Momentum.kind: MomentumRule,
    optimizers.Adagrad.kind: AdagradRule,
    optimizers.AdagradDecay.kind: AdagradDecayRule,
    optimizers.RMSProp.kind: RMSPropRule,
    optimizers.Adam.kind: AdamRule,
    optimizers.AdamW.kind: AdamWRule,
    optimizers.Lamb.kind: LambRule,
    optimizers.Ftrl.kind: FtrlRule,
    optimizers.MovingAverage.kind: MovingAverageRule,
}

if RULES.keys() != optimizers.UPDATES.keys():
    unmatched = ", ".join(sorted(RULES.keys() ^ optimizers.UPDATES.keys()))
    raise ImportError(f"every spec needs a rule and every rule a spec, but {unmatched} has only one of them")


def rule_for(spec: optimizers.UpdateSpec) -> Rule:
    """The rule that does what `spec` says; a subclass of a spec has the rule of its kind.

    Raises:
        InvalidMessage: there is no rule for this kind.
    """
    if spec.kind not in RULES:
        raise InvalidMessage(f"no update rule for optimizer {spec.kind!r}; there are {', '.join(sorted(RULES))}")
    return RULES[spec.kind](spec)


def loop_name(spec: optimizers.UpdateSpec) -> str | None:
    """The name of the fused loop (`kernels.fused_loop`) of the rule for `spec`; None if it has none.

    Raises:
        InvalidMessage: there is no rule for this kind.
    """
    rule = rule_for(spec)
    return rule.loop_name if isinstance(rule, ElementWise) else None
