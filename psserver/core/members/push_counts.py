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
from pswire.tensors.values import Array, IndexedSlices

#: Variables of which staleness is counted for each worker: those that were registered first.
MAX_VARIABLES = 256

#: The part of a new value in a moving average.
AVERAGE_PART = 1 / 16


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
    _by_variable: dict[str, list[int]] = field(default_factory=dict)  # pushes, and the sum of their stalenesses

    def add_loss(self, loss: float) -> None:
        """Count the loss of a push."""
        before = math.nan if self.cost is None else self.cost
        self.cost = before + (loss - before) * AVERAGE_PART if math.isfinite(before) else loss

    def add_gradients(
        self, gradients: Iterable[Gradient], magnitudes: Mapping[str, float], variables: Mapping[str, CountedVariable]
    ) -> None:
        """Count the gradients of a push of these magnitudes that has made an update of its variables."""
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
            self.encoding = array.dtype.name if type(array) is np.ndarray else _encoding(array)
            self.gradient = magnitude
            self.gradient_mean += (magnitude - self.gradient_mean) * (AVERAGE_PART if self.gradient_mean else 1.0)

    def row(self, worker: str, incarnation: int, variables: Iterable[str]) -> WorkerStaleness:
        """Its row in a `StalenessMatrix` of these variables."""
        counts = [self._by_variable.get(name, (0, 0)) for name in variables]
        pushes, sums = tuple([one[0] for one in counts]), tuple([one[1] for one in counts])
        return WorkerStaleness(worker, incarnation, pushes, sums)


def _encoding(array: Array | IndexedSlices | Packed) -> str:
    if isinstance(array, Packed):
        return array.form
    if isinstance(array, IndexedSlices):
        return f"rows {_encoding(array.values)}"
    return array.dtype.name
