"""Adam, element by element. May import numpy, `pswire`'s pure half and the kernels."""

from __future__ import annotations

import math

import numpy as np

from psserver.core.rules.kernels import ElementWise, blocks, positive, slot_like
from pswire import specs
from pswire.values import Array


class AdamRule(ElementWise):
    """Formula and source: `pswire.specs.Adam`."""

    def __init__(self, spec: specs.Adam) -> None:
        self._beta1, self._beta2 = float(spec.beta1), float(spec.beta2)
        self._epsilon = float(spec.epsilon)

    def slots(self, value: Array) -> dict[str, Array]:
        """`m` and `v`, zero; raises `InvalidMessage` when the variable's dtype is not floating."""
        return {"m": slot_like(value), "v": slot_like(value)}

    @np.errstate(all="ignore")
    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: int, learning_rate: float) -> None:
        """Moves both averages, then the value.

        The bias corrections are numbers, not passes over the arrays: numerator and denominator of the step are
        both multiplied by sqrt(1 - beta2^t), as at the end of section 2 of the paper.
        """
        root = math.sqrt(1 - self._beta2**step)
        rate = learning_rate * root / (1 - self._beta1**step)
        epsilon = positive(self._epsilon * root, value)
        for w, g, scratch, (m, v) in blocks(value, gradient, slots["m"], slots["v"]):
            np.multiply(g, 1 - self._beta1, out=scratch)
            m *= self._beta1
            m += scratch
            np.multiply(g, g, out=scratch)
            scratch *= 1 - self._beta2
            v *= self._beta2
            v += scratch
            np.sqrt(v, out=scratch)
            scratch += epsilon
            np.divide(m, scratch, out=scratch)
            scratch *= rate
            w -= scratch
