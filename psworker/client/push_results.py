"""What several shards say to one message, put together as one answer.

Pure: asks nobody. Answers come in the order of the shards. How values are put together is in `wanted`. May import
placement and messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pswire.errors import ConfigurationError
from pswire.messages import Joined, Outcome, Pushed
from psworker.client.placement import Whole


@dataclass(frozen=True, slots=True)
class PushResult:
    """What became of a push.

    Attributes:
        outcome, global_step, reason: as shard 0 says.
        staleness: the largest over the shards.
        values: of the variables that were asked for, in their order.
    """

    outcome: Outcome
    staleness: int
    global_step: int
    values: tuple[Whole, ...]
    reason: str


def push_result(pushed: Sequence[Pushed], values: Iterable[Whole]) -> PushResult:
    """What the shards say of the parts of one push, and the values that came with it."""
    first = pushed[0]
    staleness = max(answer.staleness for answer in pushed)
    return PushResult(first.outcome, staleness, first.global_step, tuple(values), first.reason)


def check_alike(answers: Sequence[Joined]) -> None:
    """Raises `ConfigurationError` if the shards of a job were not started with the same consistency and staleness."""
    first = answers[0]
    for shard, joined in enumerate(answers):
        if (joined.consistency, joined.staleness) != (first.consistency, first.staleness):
            raise ConfigurationError(
                f"shard 0 was started with --consistency {first.consistency} --staleness {first.staleness}, shard "
                f"{shard} with --consistency {joined.consistency} --staleness {joined.staleness}: start all shards of "
                "a job alike"
            )
