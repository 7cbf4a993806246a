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
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pswire.tensors.values import TensorSpec
from psworker.client.placement import Placement

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
    """A decoded increment: the step of the shard, and the number of gradients of the update."""

    step: int
    gradients: int


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


@dataclass(frozen=True)
class Layout:
    """The variables of a job and their placement.

    `first` and `second` are two small variables on each shard that every push to the shard updates alike: values that
    differ are a torn read. `dense` and `table` are split over all shards by rows; a push to a shard has two rows of the
    table there, and sometimes the dense variable, which is large.
    """

    shards: int

    @property
    def small(self) -> tuple[list[str], list[str]]:
        """The names of the first and the second variable on each shard."""
        first, second = ([f"{name}{shard}" for shard in range(self.shards)] for name in ("first", "second"))
        return first, second

    def dense_row(self, shard: int) -> int:
        """The first row of the dense variable on a shard; its columns are used like those of the small variables."""
        return shard * DENSE_ROWS // self.shards

    def table_row(self, shard: int, column: int = 0) -> int:
        """The row of the table for a column on a shard."""
        return shard * TABLE_ROWS // self.shards + column

    def check(self) -> None:
        """Compares with the placement of a client."""
        shapes = {name: (COLUMNS,) for names in self.small for name in names}
        shapes |= {"dense": DENSE_SHAPE, "table": (TABLE_ROWS, WIDTH)}
        placed = Placement(self.shards).extended([TensorSpec(name, shapes[name], "float64") for name in shapes])
        wanted = {name: [(shard, 0)] for names in self.small for shard, name in enumerate(names)}
        wanted["dense"] = [(shard, self.dense_row(shard)) for shard in range(self.shards)]
        wanted["table"] = [(shard, self.table_row(shard)) for shard in range(self.shards)]
        for name, partitions in wanted.items():
            found = [(one.shard, one.part.first if one.part else 0) for one in placed[name].partitions]
            assert found == partitions, f"(shard, first row) of {name}: {found}, not {partitions}"


def gradient(column: int, unit: int) -> np.ndarray:
    """The gradient of a small variable: with learning rate 1 it adds 1 to column 0 and `unit` to its own column."""
    array = np.zeros(COLUMNS)
    array[[0, column]] = -1.0, -unit
    return array
