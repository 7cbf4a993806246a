"""What several shards say to one message, put together as one answer.

Pure: asks nobody. Answers come in the order of the shards. How values are put together is in `wanted`. May import
placement and messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pswire.errors import ConfigurationError, NotJoined
from pswire.messages import Joined, Outcome, Pushed
from psworker.placement import Whole


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


#: Updates that the shards of a job may be apart: one for each push that is under way, or was when its worker died.
APART = 1000


def check_alike(answers: Sequence[Joined]) -> None:
    """Looks at what the shards of a job answer to a worker that joins.

    Raises:
        ConfigurationError: they were not started with the same consistency and staleness.
        NotJoined: one of them has lost its state.
    """
    first = answers[0]
    for shard, joined in enumerate(answers):
        if (joined.consistency, joined.staleness) != (first.consistency, first.staleness):
            raise ConfigurationError(
                f"shard 0 was started with --consistency {first.consistency} --staleness {first.staleness}, shard "
                f"{shard} with --consistency {joined.consistency} --staleness {joined.staleness}: start all shards of "
                "a job alike"
            )
    furthest = max(joined.global_step for joined in answers)
    for shard, joined in enumerate(answers):
        check_kept(shard, joined, furthest - APART)


def check_kept(shard: int, joined: Joined, step: int) -> None:
    """Raises `NotJoined` if a shard is not as far as `step`, where the job has been: it was started anew."""
    if joined.global_step < step:
        raise NotJoined(
            f"shard {shard} is at step {joined.global_step:,} and was at {step:,} or beyond: that server was started "
            "anew and has lost its state; start the whole job again"
        )
