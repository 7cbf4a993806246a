"""Adagrad whose accumulator decays, element by element.

May import numpy, `pswire`'s pure half, Adagrad, the kernels and the limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psserver.core.rules.adagrad import accumulate, accumulated_growth
from psserver.core.rules.contract import Step
from psserver.core.rules.kernels import ElementWise, positive
from psserver.core.rules.limits import Limits
from pswire import optimizers
from pswire.tensors.values import Array


class AdagradDecayRule(ElementWise):
    """Formula and source: `pswire.optimizers.AdagradDecay`."""

    squares = ("accumulator",)

    def __init__(self, spec: optimizers.AdagradDecay) -> None:
        super().__init__(spec, first={"accumulator": spec.initial_accumulator})
        self._floor = float(spec.initial_accumulator)
        self._decay_steps = spec.decay_steps
        self._decay_rate = float(spec.decay_rate)

    def numbers(self, step: Step, value: Array) -> tuple[float, ...]:
        """The period of this step, the learning rate, and what is added to a root that may be zero."""
        return float(step.global_step // self._decay_steps), step.learning_rate, positive(0.0, value)

    def growth(self, rate: float, limits: Limits) -> float:
        """As Adagrad's: a decay makes the accumulator no larger."""
        return accumulated_growth(rate, 0.0, self._floor, limits)

    def block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        """Lets the accumulator catch up with the decays that it has missed, then does as Adagrad."""
        a, power = slots
        period, rate, epsilon = numbers
        np.subtract(period, power, out=scratch)
        if scratch.any():  # seldom, and a power of each element is dear
            np.power(self._decay_rate, scratch, out=scratch)
            a *= scratch
            np.maximum(a, self._floor, out=a)
            power[...] = period
        accumulate(w, g, scratch, a, rate, epsilon)
