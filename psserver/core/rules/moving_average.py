"""The moving average of what workers saw, element by element. No slots, and no learning rate.

May import numpy, `pswire`'s pure half and the kernels.
"""

from __future__ import annotations

import numpy as np

from psserver.core.rules.kernels import ElementWise, blocks, check_dtype
from pswire import specs
from pswire.values import Array


class MovingAverageRule(ElementWise):
    """Formula and source: `pswire.specs.MovingAverage`. What comes as a gradient is what was seen."""

    def __init__(self, spec: specs.MovingAverage) -> None:
        self._decay = float(spec.decay)

    def slots(self, value: Array) -> dict[str, Array]:
        """None; raises `InvalidMessage` when the variable's dtype is not floating."""
        check_dtype(value)
        return {}

    @np.errstate(all="ignore")
    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: int, learning_rate: float) -> None:
        """Moves the average towards what was seen."""
        for w, x, scratch, _ in blocks(value, gradient):
            np.multiply(x, 1 - self._decay, out=scratch)
            w *= self._decay
            w += scratch
