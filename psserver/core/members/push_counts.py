"""What a shard counts about the pushes of one incarnation of a worker, for displays.

It decides nothing and is no part of the state: after a restart it begins anew. A push adds some microseconds at most,
so there are plain numbers here; what is computed of them is computed when somebody asks.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pswire.messages import Gradient, WorkerStaleness
from pswire.tensors.compression import Packed
from pswire.tensors.values import DTYPE_NAMES, Array, IndexedSlices

#: Variables of which staleness is counted for each worker: those that were registered first.
MAX_VARIABLES = 256

#: The part of a new value in a moving average.
AVERAGE_PART = 1 / 16

#: A gradient jumps if it is so many times as large as is usual, after so many pushes. What is usual grows by a gradient
#: of at most so many times as large: a few large ones do not become usual.
JUMP, PUSHES_BEFORE_JUMP, MOST_USUAL = 30.0, 16, 4.0


class CountedVariable(Protocol):
    """A variable, as far as pushes are counted by it."""

    version: int
    bytes_in: int


@dataclass(slots=True)
class PushCounts:
    """Counts of one incarnation of a worker; attributes are those of `WorkerStatus`."""

    cost: float | None = None
    waited: float = 0.0
    encoding: str = ""
    gradient: float = 0.0
    gradient_mean: float = 0.0
    drop_reason: str = ""
    first_loss: float | None = None
    peak_cost: float | None = None
    empty: int = 0
    jumps: int = 0
    jump: float = 0.0
    jumped_at: int = 0
    _usual: float = 0.0  # the moving average without jumps
    _pushes: int = 0
    _by_variable: dict[str, list[int]] = field(default_factory=dict)  # pushes, and the sum of their stalenesses

    def add_loss(self, loss: float) -> None:
        """Count the loss of a push."""
        before = math.nan if self.cost is None else self.cost
        self.cost = cost = before + (loss - before) * AVERAGE_PART if math.isfinite(before) else loss
        if self.peak_cost is None or self.first_loss is None:
            self.first_loss = self.peak_cost = loss
        elif cost > self.peak_cost:
            self.peak_cost = cost

    def add_gradients(
        self,
        gradients: Iterable[Gradient],
        magnitudes: Mapping[str, float],
        variables: Mapping[str, CountedVariable],
        global_step: int,
    ) -> None:
        """Count the gradients of a push of these magnitudes that has made an update of its variables, at this step."""
        array: Array | IndexedSlices | Packed | None = None
        by_variable, magnitude = self._by_variable, 0.0
        for gradient in gradients:
            name, array = gradient.name, gradient.array
            variable = variables[name]
            variable.bytes_in += array.nbytes
            magnitude = max(magnitude, magnitudes[name])
            counts = by_variable.get(name)
            if counts is None:
                if len(by_variable) >= MAX_VARIABLES:
                    continue
                counts = by_variable[name] = [0, 0]
            counts[0] += 1
            counts[1] += variable.version - 1 - gradient.version
        if array is not None:
            self.encoding = DTYPE_NAMES[array.dtype] if type(array) is np.ndarray else _encoding(array)
            self.gradient = magnitude
            self.gradient_mean += (magnitude - self.gradient_mean) * (AVERAGE_PART if self.gradient_mean else 1.0)
            usual = self._usual
            if usual and magnitude > usual * JUMP and self._pushes >= PUSHES_BEFORE_JUMP:
                if not self.jumps:
                    self.jump, self.jumped_at = magnitude / usual, global_step
                self.jumps += 1
            self._usual += (min(magnitude, usual * MOST_USUAL) - usual) * AVERAGE_PART if usual else magnitude
            self._pushes += 1

    def row(self, worker: str, incarnation: int, variables: Iterable[str]) -> WorkerStaleness:
        """Its row in a `StalenessMatrix` of these variables."""
        counts = [self._by_variable.get(name, (0, 0)) for name in variables]
        pushes, sums = tuple([one[0] for one in counts]), tuple([one[1] for one in counts])
        return WorkerStaleness(worker=worker, incarnation=incarnation, pushes=pushes, sums=sums)


def _encoding(array: Array | IndexedSlices | Packed) -> str:
    if isinstance(array, Packed):
        return array.form
    if isinstance(array, IndexedSlices):
        return f"rows {_encoding(array.values)}"
    return DTYPE_NAMES[array.dtype]
