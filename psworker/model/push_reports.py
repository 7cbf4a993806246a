"""The report of a push, which `apply_gradients` returns. Imports nothing."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["PushReport"]

PushOutcome: TypeAlias = Literal["applied", "repeated", "dropped", "none"]


@dataclass(frozen=True, slots=True)
class PushReport:
    """What became of a push.

        report = optimizer.apply_gradients(pairs)
        if report.outcome == "dropped":
            ...

    Attributes:
        outcome: "applied"; "repeated" if a retry of it had been applied before; "dropped" if the servers' policy
            refused it, for the reason that is logged; "none" if no push was answered in this call: of an empty list, or
            where gradients are summed (`push_every`, `local_steps`) or still under way (`overlap`). With `overlap` the
            report is of the push before.
        staleness: updates that the weights of this push had missed; 0 for "none".
        step: the servers' global step, as of their last answer.
    """

    outcome: PushOutcome
    staleness: int
    step: int
