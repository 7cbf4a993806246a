"""Adagrad: a learning rate for each element, by the squares of all its gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pswire.optimizers.compiled import Numbers, Slots, loop
from pswire.optimizers.element_wise import ElementWise
from pswire.optimizers.limits import Limits
from pswire.optimizers.optimizer import OptimizerSpec, Step
from pswire.specs.spec import NotNegative
from pswire.tensors.values import Array


@dataclass(frozen=True)
class Adagrad(OptimizerSpec, kind="adagrad"):
    """A learning rate for each element, by the squares of all its gradients. Slot: `accumulator`.

        a <- a + g^2                       (a starts at initial_accumulator)
        w <- w - learning_rate * g / (sqrt(a) + epsilon)

    Source: J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods", JMLR 12, 2011, figure 1 (diagonal);
    defaults as TensorFlow 1's AdagradOptimizer, which has no epsilon.
    """

    _slots: ClassVar[tuple[str, ...]] = ("accumulator",)
    initial_accumulator: NotNegative = 0.1
    epsilon: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_accumulator == 0 and self.epsilon == 0:
            raise ValueError("Adagrad: initial_accumulator or epsilon must be more than 0, or 0 / 0 makes a NaN")


class AdagradRule(ElementWise, of=[Adagrad]):
    """Update rule of `Adagrad`."""

    squares = ("accumulator",)

    def __init__(self, spec: Adagrad) -> None:
        super().__init__(spec, _adagrad, {"accumulator": spec.initial_accumulator})
        self._epsilon = spec.epsilon

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        """The learning rate and epsilon."""
        return step.learning_rate, max(self._epsilon, tiny)

    def growth(self, rate: float, limits: Limits) -> float:
        """See `accumulated_growth`."""
        return accumulated_growth(rate, self._epsilon, self._first["accumulator"], limits)

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        (a,) = slots
        accumulate(w, g, scratch, a, *numbers)


def accumulate(w: Array, g: Array, scratch: Array, a: Array, rate: float, epsilon: float) -> None:
    """Adds the gradient's squares to the accumulator, then moves by the gradient over its root."""
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


def accumulated_growth(rate: float, epsilon: float, first: float, limits: Limits) -> float:
    """The accumulator grows by the gradient's square, and its root is as large as the gradient, unless that is zero.

    That is so where the gradient is below the root of `limits.tiny`; the divisor is `limits.tiny` at least.
    """
    if first > limits.squares:
        return math.inf
    direction = min(limits.gradient / max(epsilon, limits.tiny), 2 / math.sqrt(limits.tiny))
    return (limits.gradient**2 + rate * direction) / limits.most
