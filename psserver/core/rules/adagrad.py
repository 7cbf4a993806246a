"""Adagrad, element by element. May import numpy, `pswire`'s pure half, the kernels and the limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from psserver.core.rules.contract import Step
from psserver.core.rules.kernels import ElementWise, positive
from psserver.core.rules.limits import Limits
from pswire import optimizers
from pswire.tensors.values import Array


class AdagradRule(ElementWise):
    """Formula and source: `pswire.optimizers.Adagrad`."""

    squares = ("accumulator",)

    def __init__(self, spec: optimizers.Adagrad) -> None:
        super().__init__(spec, loop="adagrad", first={"accumulator": spec.initial_accumulator})
        self._epsilon = float(spec.epsilon)

    def numbers(self, step: Step, value: Array) -> tuple[float, ...]:
        """The learning rate and epsilon."""
        return step.learning_rate, positive(self._epsilon, value)

    def growth(self, rate: float, limits: Limits) -> float:
        """See `accumulated_growth`."""
        return accumulated_growth(rate, self._epsilon, self._first["accumulator"], limits)

    def block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        """Accumulates and moves."""
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


def accumulated_growth(rate: float, epsilon: float, first: float, limits: Limits) -> float:
    """The accumulator grows by the gradient's square, and its root is as large as the gradient, unless that is zero.

    That is so where the gradient is below the root of `limits.tiny`, and what is divided by is `limits.tiny` at least.
    """
    if first > limits.squares:
        return math.inf
    direction = min(limits.gradient / max(epsilon, limits.tiny), 2 / math.sqrt(limits.tiny))
    return (limits.gradient**2 + rate * direction) / limits.most
