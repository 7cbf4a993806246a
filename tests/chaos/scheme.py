"""The gradients of a chaos worker, from which the values of variables show exactly which pushes were applied.

Each worker process has a column, from 1. Its push adds an increment to its own column of every variable that it has a
gradient for, and every push adds to column 0. The learning rate decreases by one with each update of the shard, from
BASE, and is exact in float64, so an increment encodes the step of the shard and the number of gradients of the update:

    increment of a column = (BASE - step) * unit / gradients           unit: the least common multiple of 1 ... N
    column 0              = updates * BASE - sum of their steps

Independent of the server's versions, staleness and sequence numbers. Imported by the worker program and the checks.
"""

import math
from typing import NamedTuple

#: The learning rate at step 0. Far above the number of updates of a run, and a power of two: all sums stay exact.
BASE = 1 << 32
COLUMNS = 128


class Push(NamedTuple):
    """A decoded increment."""

    step: int  # of the shard
    gradients: int  # of the update


def unit_of(gradients: int) -> int:
    """The unit of increments if an update is the mean of at most this many gradients."""
    return math.lcm(*range(1, gradients + 1))


def decode(increment: float, unit: int) -> Push | None:
    """The push of an increment; None if it is no push or several.

    Increments of groups of different sizes are far apart, because steps are small compared with BASE.
    """
    share = math.ceil(increment / BASE)
    if share < 1 or unit % share:
        return None
    step, rest = divmod(share * BASE - increment, share)
    return None if rest else Push(int(step), unit // share)


def increment_of(push: Push, unit: int) -> float:
    return float((BASE - push.step) * unit // push.gradients)


def count_updates(column: float) -> tuple[int, int]:
    """The number of updates included in column 0, and the sum of their steps."""
    updates = math.ceil(column / BASE)
    return updates, int(updates * BASE - column)


def small(shards: int) -> list[tuple[str, str]]:
    """The names of two small variables on each shard, which every push to it updates alike: a torn read shows."""
    return [(f"first{shard}", f"second{shard}") for shard in range(shards)]
