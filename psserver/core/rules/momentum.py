"""Gradient descent with momentum, plain and Nesterov's. May import numpy, `pswire`'s pure half and the kernels."""

from __future__ import annotations

import numpy as np

from psserver.core.rules.kernels import blocks, slot_like
from pswire import specs
from pswire.values import Array


class MomentumRule:
    """Formula and source: `pswire.specs.Momentum`."""

    def __init__(self, spec: specs.Momentum) -> None:
        self._learning_rate = float(spec.learning_rate)
        self._momentum = float(spec.momentum)
        self._nesterov = spec.nesterov

    def slots(self, value: Array) -> dict[str, Array]:
        """`momentum`, zero; raises `InvalidMessage` when the variable's dtype is not floating."""
        return {"momentum": slot_like(value)}

    @np.errstate(all="ignore")
    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: int) -> None:
        """Adds the gradient to the momentum, then moves by it."""
        for w, g, scratch, (m,) in blocks(value, gradient, slots["momentum"]):
            m *= self._momentum
            m += g
            if self._nesterov:
                np.multiply(m, self._momentum, out=scratch)
                scratch += g
                scratch *= self._learning_rate
            else:
                np.multiply(m, self._learning_rate, out=scratch)
            w -= scratch
