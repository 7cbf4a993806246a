"""Gradient descent with momentum, plain and Nesterov's, element by element.

May import numpy, `pswire`'s pure half, the kernels and the limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psserver.core.rules.contract import Step
from psserver.core.rules.kernels import ElementWise
from psserver.core.rules.limits import Limits, decayed_sum
from pswire import optimizers
from pswire.tensors.values import Array


class MomentumRule(ElementWise):
    """Formula and source: `pswire.optimizers.Momentum`."""

    def __init__(self, spec: optimizers.Momentum) -> None:
        super().__init__(spec, loop="nesterov" if spec.nesterov else "momentum")
        self._momentum = float(spec.momentum)
        self._nesterov = spec.nesterov

    def numbers(self, step: Step, value: Array) -> tuple[float, ...]:
        """The momentum and the learning rate."""
        return self._momentum, step.learning_rate

    def growth(self, rate: float, limits: Limits) -> float:
        """The momentum is `limits.state`, or what gradients of one sign make of it; Nesterov's adds one more."""
        momentum = limits.state + limits.gradient * (1 + decayed_sum(self._momentum))
        return rate * momentum / limits.most

    def block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        """Adds the gradient to the momentum, then moves by it."""
        (m,) = slots
        momentum, rate = numbers
        m *= momentum
        m += g
        if self._nesterov:
            np.multiply(m, momentum, out=scratch)
            scratch += g
            scratch *= rate
        else:
            np.multiply(m, rate, out=scratch)
        w -= scratch
