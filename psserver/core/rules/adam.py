"""Adam, with AMSGrad and decay of weights, element by element.

May import numpy, `pswire`'s pure half, the kernels, the limits and the moments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from psserver.core.rules.contract import Step
from psserver.core.rules.kernels import ElementWise
from psserver.core.rules.limits import Limits
from psserver.core.rules.moments import Moments, direct, move
from pswire import optimizers
from pswire.tensors.values import Array


class AdamRule(ElementWise):
    """Formula and source: `pswire.optimizers.Adam`. Also what `AdamW` does, by its decay of weights."""

    squares = ("v", "v_max")

    def __init__(self, spec: optimizers.Adam, weight_decay: float = 0.0) -> None:
        super().__init__(spec, loop="amsgrad" if spec.amsgrad else "adam")
        self._moments = Moments(spec)
        self._weight_decay = float(weight_decay)

    def numbers(self, step: Step, value: Array) -> tuple[float, ...]:
        """The shares of the averages, the step's factor and epsilon, and what the decay leaves of a weight."""
        factor, epsilon = self._moments.corrected(step, value)
        return (
            *self._moments.shares,
            step.learning_rate * factor,
            epsilon,
            1 - step.learning_rate * self._weight_decay,
        )

    def growth(self, rate: float, limits: Limits) -> float:
        """That of the moments; a decay of more than twice a weight would let it grow without a limit."""
        return self._moments.growth(rate, limits) if rate * self._weight_decay <= 2 else math.inf

    def block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        """Moves the averages, then the value."""
        m, v, *largest = slots
        *shares, factor, epsilon, kept = numbers
        move(g, m, v, scratch, tuple(shares))
        for v_max in largest:
            np.maximum(v_max, v, out=v_max)
        direct(m, largest[0] if largest else v, scratch, factor, epsilon)
        if kept != 1:
            w *= kept
        w -= scratch
