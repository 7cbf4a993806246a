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

import numpy as np

from pswire.tensors.values import TensorSpec
from psworker.client.placement import Placement

#: The learning rate at step 0. Far above the number of updates of a run, and a power of two: all sums stay exact.
BASE = 1 << 32
COLUMNS = 128
WIDTH = 8  # of a row of the table
#: Divisible by one, two and three shards, and above `placement.SPLIT_BYTES` of float64.
DENSE_ROWS, DENSE_WIDTH = 534, 1024
TABLE_ROWS = 65_538
#: A push includes the dense variable after this many updates, in all workers of a synchronous group alike.
DENSE_EVERY = 40


@dataclass(frozen=True)
class Push:
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
    def first(self) -> list[str]:
        return [f"first{shard}" for shard in range(self.shards)]

    @property
    def second(self) -> list[str]:
        return [f"second{shard}" for shard in range(self.shards)]

    @property
    def specs(self) -> list[TensorSpec]:
        small = [TensorSpec(name, (COLUMNS,), "float64") for name in (*self.first, *self.second)]
        dense = TensorSpec("dense", (DENSE_ROWS, DENSE_WIDTH), "float64")
        return [*small, dense, TensorSpec("table", (TABLE_ROWS, WIDTH), "float64")]

    def dense_row(self, shard: int) -> int:
        """The first row of the dense variable on a shard; its columns are used like those of the small variables."""
        return shard * DENSE_ROWS // self.shards

    def table_rows(self, shard: int, column: int) -> tuple[int, int]:
        """The rows of the table on a shard for column 0 and for this column."""
        begin = shard * TABLE_ROWS // self.shards
        return begin, begin + column

    def check(self) -> None:
        placement = Placement(self.shards).extended(self.specs)
        for names in (self.first, self.second):
            for shard, name in enumerate(names):
                assert [partition.shard for partition in placement[name].partitions] == [shard], (
                    f"{name} is not on shard {shard}"
                )
        for name, first in (("dense", self.dense_row), ("table", lambda shard: self.table_rows(shard, 0)[0])):
            pieces = placement[name].partitions
            assert len(pieces) == self.shards, f"{name} is not split over all shards"
            begins = [partition.part.first if partition.part else 0 for partition in pieces]
            assert begins == [first(shard) for shard in range(self.shards)], f"{name} is split at {begins}"


def gradient(column: int, unit: int) -> np.ndarray:
    """The gradient of a small variable: with learning rate 1 it adds 1 to column 0 and `unit` to its own column."""
    array = np.zeros(COLUMNS)
    array[[0, column]] = -1.0, -unit
    return array
