"""RMSProp, plain, centered and with momentum, element by element.

May import numpy, `pswire`'s pure half, the kernels and the limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from psserver.core.rules.contract import Step
from psserver.core.rules.kernels import ElementWise, positive
from psserver.core.rules.limits import Limits, decayed_sum
from pswire import optimizers
from pswire.tensors.values import Array


class RMSPropRule(ElementWise):
    """Formula and source: `pswire.optimizers.RMSProp`. The plain one has a fused loop."""

    squares = ("mean_square",)

    def __init__(self, spec: optimizers.RMSProp) -> None:
        super().__init__(spec, loop=None if spec.centered or spec.momentum > 0 else "rmsprop")
        self._decay, self._momentum = float(spec.decay), float(spec.momentum)
        self._epsilon = float(spec.epsilon)
        self._centered = spec.centered

    def numbers(self, step: Step, value: Array) -> tuple[float, ...]:
        """The shares of the old and of the new in an average, the learning rate, and epsilon."""
        return self._decay, 1 - self._decay, step.learning_rate, positive(self._epsilon, value)

    def growth(self, rate: float, limits: Limits) -> float:
        """What is divided by may be no more than epsilon, with a decay of 0, or centered."""
        epsilon = max(self._epsilon, limits.tiny)
        direction = limits.state + limits.gradient / epsilon * decayed_sum(self._momentum)
        if direction > limits.most:
            return math.inf
        return (limits.gradient**2 + rate * direction) / limits.most

    def block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        """Moves the averages, then the value by the gradient over a root, or by the momentum of that."""
        s, *more = slots
        decay, rest, rate, epsilon = numbers
        np.multiply(g, g, out=scratch)
        scratch *= rest
        s *= decay
        s += scratch
        if self._centered:
            c, *more = more
            np.multiply(g, rest, out=scratch)
            c *= decay
            c += scratch
            np.multiply(c, c, out=scratch)
            np.subtract(s, scratch, out=scratch)
            np.maximum(scratch, 0, out=scratch)  # a variance of zero may come out a little below
            np.sqrt(scratch, out=scratch)
        else:
            np.sqrt(s, out=scratch)
        scratch += epsilon
        np.divide(g, scratch, out=scratch)
        if self._momentum > 0:
            (b,) = more
            b *= self._momentum
            b += scratch
            np.multiply(b, rate, out=scratch)
        else:
            scratch *= rate
        w -= scratch
