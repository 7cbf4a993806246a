"""Adagrad, plain and with an accumulator that decays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pswire.optimizers.element_wise import ElementWise
from pswire.optimizers.numba_compiler import Loop, Numbers, Slots, loop
from pswire.optimizers.optimizer import OptimizerSpec, Step
from pswire.specs.spec import Count, NotNegative, Positive, ShareOrOne
from pswire.tensors.values import Array


@dataclass(frozen=True)
class Adagrad(OptimizerSpec, ElementWise, kind="adagrad"):
    """A learning rate for each element, by the squares of all its gradients. Slot: `accumulator`.

        a <- a + g^2                       (a starts at initial_accumulator)
        w <- w - learning_rate * g / (sqrt(a) + epsilon)

    Source: J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods", JMLR 12, 2011, figure 1 (diagonal);
    defaults as TensorFlow 1's AdagradOptimizer, which has no epsilon.

    Args:
        learning_rate: a number from 0 up, or a schedule (`psworker.schedules`) of the server's global step.
        initial_accumulator: first value of the accumulator, which bounds the first steps; from 0 up, by default 0.1.
        epsilon: what is added to the root; from 0 up, by default 0.
    """

    _slots = ("accumulator",)
    _squares = ("accumulator",)
    initial_accumulator: NotNegative = 0.1
    epsilon: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_accumulator == 0 and self.epsilon == 0:
            raise ValueError("Adagrad: initial_accumulator or epsilon must be more than 0 (0 / 0 is NaN)")

    def _loop(self) -> Loop | None:
        return _adagrad

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        return step.learning_rate, max(self.epsilon, tiny)

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        _accumulate(w, g, scratch, slots[0], *numbers)


@dataclass(frozen=True)
class AdagradDecay(OptimizerSpec, ElementWise, kind="adagrad_decay"):
    """Adagrad with a decaying accumulator, so that the steps of a long job do not shrink towards zero.

    Slots: `accumulator`, and `accumulator_decay_power`, the number of decays that it has had, zero at first. With
    period = global_step // decay_steps, of the updates that the shard had made before this one:

        a <- max(initial_accumulator, a * decay_rate^max(0, period - power))
        power <- period
        a <- a + g^2                       (a starts at initial_accumulator)
        w <- w - learning_rate * g / sqrt(a)

    Lazy: a row that was not named for some periods catches up with all of them when it is. A variable that is created
    late also starts with a power of zero; since its accumulator cannot fall below its initial value, catching up has no
    effect.

    Source: Adagrad as above; the decay, its floor and the slots as DeepRec's AdagradDecayOptimizer
    (github.com/DeepRec-AI/DeepRec), which catches up with one period at a time, however many were missed.

    Args:
        learning_rate: a number from 0 up, or a schedule (`psworker.schedules`) of the server's global step.
        initial_accumulator: first and least value of the accumulator; above 0, by default 0.1.
        decay_steps: updates of the shard between two decays; from 1 up, by default 100,000.
        decay_rate: share of the accumulator that remains at a decay; from 0 to 1 (no decay), by default 0.9.
    """

    _slots = ("accumulator", "accumulator_decay_power")
    _squares = ("accumulator",)
    initial_accumulator: Positive = 0.1
    decay_steps: Count = 100_000
    decay_rate: ShareOrOne = 0.9

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        return float(step.global_step // self.decay_steps), step.learning_rate, tiny

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        a, power = slots
        period, rate, epsilon = numbers
        np.subtract(period, power, out=scratch)
        if scratch.any():  # seldom, and a power of each element is expensive
            np.maximum(scratch, 0, out=scratch)  # a longer period that was set since has not grown what has decayed
            np.power(self.decay_rate, scratch, out=scratch)
            a *= scratch
            np.maximum(a, self.initial_accumulator, out=a)
            power[...] = period
        _accumulate(w, g, scratch, a, rate, epsilon)


def _accumulate(w: Array, g: Array, scratch: Array, a: Array, rate: float, epsilon: float) -> None:
    """Adagrad's formula."""
    np.multiply(g, g, out=scratch)
    a += scratch
    np.sqrt(a, out=scratch)
    scratch += epsilon
    np.divide(g, scratch, out=scratch)
    scratch *= rate
    w -= scratch


@loop(slots=1, numbers=2)
def _adagrad(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    (a,) = slots
    rate, epsilon = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            a[i, j] += g[r, j] * g[r, j]
            w[i, j] -= g[r, j] / (math.sqrt(a[i, j]) + epsilon) * rate
