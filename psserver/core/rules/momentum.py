"""Gradient descent with momentum, plain and Nesterov's, element by element.

May import numpy, `pswire`'s pure half and the kernels.
"""

from __future__ import annotations

import numpy as np

from psserver.core.rules.kernels import ElementWise, blocks, slot_like
from pswire import specs
from pswire.values import Array


class MomentumRule(ElementWise):
    """Formula and source: `pswire.specs.Momentum`."""

    def __init__(self, spec: specs.Momentum) -> None:
        self._momentum = float(spec.momentum)
        self._nesterov = spec.nesterov

    def slots(self, value: Array) -> dict[str, Array]:
        """`momentum`, zero; raises `InvalidMessage` when the variable's dtype is not floating."""
        return {"momentum": slot_like(value)}

    @np.errstate(all="ignore")
    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: int, learning_rate: float) -> None:
        """Adds the gradient to the momentum, then moves by it."""
        for w, g, scratch, (m,) in blocks(value, gradient, slots["momentum"]):
            m *= self._momentum
            m += g
            if self._nesterov:
                np.multiply(m, self._momentum, out=scratch)
                scratch += g
                scratch *= learning_rate
            else:
                np.multiply(m, learning_rate, out=scratch)
            w -= scratch
