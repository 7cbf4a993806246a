"""The moving average of what workers saw, element by element. No slots, and no learning rate.

May import numpy, `pswire`'s pure half, the kernels and the limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psserver.core.rules.contract import Step
from psserver.core.rules.kernels import ElementWise
from psserver.core.rules.limits import Limits
from pswire import optimizers
from pswire.tensors.values import Array


class MovingAverageRule(ElementWise):
    """Formula and source: `pswire.optimizers.MovingAverage`. What comes as a gradient is what was seen."""

    def __init__(self, spec: optimizers.MovingAverage) -> None:
        super().__init__(spec)
        self._decay = float(spec.decay)

    def numbers(self, step: Step, value: Array) -> tuple[float, ...]:
        """The shares of the old and of the new."""
        return self._decay, 1 - self._decay

    def growth(self, rate: float, limits: Limits) -> float:
        """An average is between what it was and what was seen."""
        return limits.gradient / limits.most

    def block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        """Moves the average towards what was seen."""
        decay, rest = numbers
        np.multiply(g, rest, out=scratch)
        w *= decay
        w += scratch
