"""The report of a push, which `apply_gradients` returns. Imports nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["PushReport"]

PushOutcome: TypeAlias = Literal["applied", "repeated", "half-applied", "dropped", "none"]


@dataclass(frozen=True, slots=True)
class PushReport:
    """The outcome of a push.

        report = optimizer.apply_gradients(pairs)
        if report.outcome == "half-applied":
            print([shard for shard, outcome in report.shards.items() if outcome == "dropped"])

    Attributes:
        outcome: "applied" on all of its shards; "repeated" if a retry of it had been applied before; "half-applied" if
            some shards have applied it and others have dropped their part (see docs/reliability.md); "dropped" on
            all shards, by the servers' policy or as they went back, for the reason that is logged; "none" if no push
            was answered in this call: of an empty list, or where gradients are summed (`push_every`, `local_steps`) or
            still under way (`overlap`). With `overlap` the report is of the push before.
        staleness: updates that the weights of this push had missed; 0 for "none".
        step: the servers' global step, as of their last answer.
        shards: the outcome on shard 0, which every push goes to, and on each other shard with a part of it: "applied",
            "repeated" or "dropped". Empty for "none", and if nothing was sent or kept as the servers went back.
    """

    outcome: PushOutcome
    staleness: int
    step: int
    shards: Mapping[int, PushOutcome] = field(default_factory=dict)
