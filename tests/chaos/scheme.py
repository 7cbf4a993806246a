"""The gradients of a chaos worker, from which the values of variables show exactly which pushes were applied.

Each worker process has a column, from 1. Its push adds an increment to its own column of every variable that it has a
gradient for, and every push adds to column 0. The learning rate decreases by one with each update of the shard, from
BASE, and is exact in float64, so an increment encodes the step of the shard and the number of gradients of the update:

    increment of a column = (BASE - step) * unit / gradients           unit: the least common multiple of 1 ... N
    column 0              = updates * BASE - sum of their steps

Independent of the server's versions, staleness and sequence numbers. Imported by the worker program and the checks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

#: The learning rate at step 0. Far above the number of updates of a run, and a power of two: all sums stay exact.
BASE = 1 << 32
COLUMNS = 128
WIDTH = 8  # of a row of the table
#: Divisible by one, two and three shards, and above `placement.SPLIT_BYTES` of float64.
DENSE_SHAPE = DENSE_ROWS, _ = 534, 1024
TABLE_ROWS = 65_538
#: A push includes the dense variable after this many updates, in all workers of a synchronous group alike.
DENSE_EVERY = 40


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


# --- variables and their placement ------------------------------------------------------------------------------------

# Two small variables on each shard, `first` and `second`, are updated alike by every push to it: values that differ are
# a torn read. `dense` and `table` are split over all shards by rows; a push to a shard has two rows of the table there,
# and sometimes the dense variable, which is large.


def small(shards: int) -> list[tuple[str, str]]:
    """The names of the two small variables on each shard."""
    return [(f"first{shard}", f"second{shard}") for shard in range(shards)]


def dense_row(shard: int, shards: int) -> int:
    """The first row of the dense variable on a shard; its columns are used like those of the small variables."""
    return shard * DENSE_ROWS // shards


def table_rows(shard: int, shards: int, column: int) -> tuple[int, int]:
    """The rows of the table on a shard for column 0 and for this column."""
    begin = shard * TABLE_ROWS // shards
    return begin, begin + column


def gradient(column: int, unit: int) -> np.ndarray:
    """The gradient of a small variable: with learning rate 1 it adds 1 to column 0 and `unit` to its own column."""
    array = np.zeros(COLUMNS)
    array[[0, column]] = -1.0, -unit
    return array
