"""Adagrad whose accumulator decays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pswire.optimizers.adagrad import accumulate, accumulated_growth
from pswire.optimizers.element_wise import ElementWise
from pswire.optimizers.limits import Limits
from pswire.optimizers.optimizer import OptimizerSpec, Step
from pswire.specs.spec import Count, Positive, ShareOrOne
from pswire.tensors.values import Array


@dataclass(frozen=True)
class AdagradDecay(OptimizerSpec, kind="adagrad_decay"):
    """Adagrad that forgets: old squares count less, so that the steps of a long job do not become ever shorter.

    Slots: `accumulator`, and `accumulator_decay_power`, the number of decays that it has had, zero at first. With
    period = global_step // decay_steps, of the pushes that the shard had applied before this one:

        a <- max(initial_accumulator, a * decay_rate^(period - power))
        power <- period
        a <- a + g^2                       (a starts at initial_accumulator)
        w <- w - learning_rate * g / sqrt(a)

    Lazy: a row that was not named for some periods catches up with all of them when it is. A variable that is made late
    has a power of zero too; its accumulator cannot fall below where it starts, so what it catches up with is nothing.

    Source: Adagrad as above; the decay, its floor and the slots as DeepRec's AdagradDecayOptimizer
    (github.com/DeepRec-AI/DeepRec), which catches up with one period at a time, however many were missed.
    """

    _slots: ClassVar[tuple[str, ...]] = ("accumulator", "accumulator_decay_power")
    initial_accumulator: Positive = 0.1
    decay_steps: Count = 100_000
    decay_rate: ShareOrOne = 0.9


class AdagradDecayRule(ElementWise, of=[AdagradDecay]):
    """Update rule of `AdagradDecay`."""

    squares = ("accumulator",)

    def __init__(self, spec: AdagradDecay) -> None:
        super().__init__(spec, first={"accumulator": spec.initial_accumulator})
        self._floor = spec.initial_accumulator
        self._decay_steps, self._decay_rate = spec.decay_steps, spec.decay_rate

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        """The period of this step, the learning rate, and what is added to a root that may be zero."""
        return float(step.global_step // self._decay_steps), step.learning_rate, tiny

    def growth(self, rate: float, limits: Limits) -> float:
        """As Adagrad's: a decay makes the accumulator no larger."""
        return accumulated_growth(rate, 0.0, self._floor, limits)

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        a, power = slots
        period, rate, epsilon = numbers
        np.subtract(period, power, out=scratch)
        if scratch.any():  # seldom, and a power of each element is expensive
            np.power(self._decay_rate, scratch, out=scratch)
            a *= scratch
            np.maximum(a, self._floor, out=a)
            power[...] = period
        accumulate(w, g, scratch, a, rate, epsilon)
