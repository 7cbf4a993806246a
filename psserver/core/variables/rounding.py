"""Whether updates vanish in rounding: sampled elements of a variable, before and after one of its updates.

A step that is smaller than half a unit in the last place of an element leaves it as it is, however many such steps come
(float16 has 11 significant bits: 0.5 - 0.0001 is 0.5). The shard asks for a sample once a second, which the next dense
update of the variable takes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pswire.tensors.values import Array

#: Elements among which those of a sample are looked for, and in a sample at most.
CANDIDATES, MOST = 2048, 256

#: Variables of which samples are taken: those that were registered first.
MAX_SAMPLED = 64

#: Seconds between two samples of a variable at least. One takes some 10 to 40 us.
SECONDS_BETWEEN_SAMPLES = 1.0


@dataclass(slots=True)
class RoundingSample:
    """Counts of one variable. `due` is set by the shard's steps, and all else where its tasks run.

    Of `sampled` elements so many were `unchanged` by their update. Only those count that were not zero and had a
    gradient that is not zero: an update of any size changes a zero.
    """

    due: bool = False
    sampled: int = 0
    unchanged: int = 0

    def begin(self, value: Array, gradient: Array) -> tuple[Array, Array]:
        """The positions of a sample, in flat arrays, and their elements before the update."""
        self.due = False
        value, gradient = value.reshape(-1), gradient.reshape(-1)
        positions = np.arange(0, value.size, value.size // CANDIDATES | 1)  # odd: so that it goes through all columns
        found = positions[(gradient[positions] != 0) & (value[positions] != 0)]
        found = found[:: len(found) // MOST + 1]
        return found, value[found]

    def end(self, value: Array, sample: tuple[Array, Array]) -> None:
        """Count the sample after the update."""
        positions, before = sample
        self.sampled += len(positions)
        self.unchanged += int(np.count_nonzero(value.reshape(-1)[positions] == before))


class Samples:
    """When samples are taken: nothing else depends on it."""

    def __init__(self) -> None:
        self._next = -math.inf

    def ask(self, samples: Iterable[RoundingSample], now: float) -> None:
        """Have the next updates of these variables take samples, if it is time."""
        if now >= self._next:
            self._next = now + SECONDS_BETWEEN_SAMPLES
            for sample in islice(samples, MAX_SAMPLED):
                sample.due = True
