"""Adagrad, element by element. May import numpy, `pswire`'s pure half and the kernels."""

from __future__ import annotations

import numpy as np

from psserver.core.rules.kernels import ElementWise, blocks, positive, slot_like
from pswire import specs
from pswire.values import Array


class AdagradRule(ElementWise):
    """Formula and source: `pswire.specs.Adagrad`."""

    def __init__(self, spec: specs.Adagrad) -> None:
        self._initial_accumulator = float(spec.initial_accumulator)
        self._epsilon = float(spec.epsilon)

    def slots(self, value: Array) -> dict[str, Array]:
        """`accumulator`, at its initial value; raises `InvalidMessage` when the variable's dtype is not floating."""
        return {"accumulator": slot_like(value, self._initial_accumulator)}

    @np.errstate(all="ignore")
    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: int, learning_rate: float) -> None:
        """Adds the gradient's squares to the accumulator, then moves by the gradient over its root."""
        epsilon = positive(self._epsilon, value)
        for w, g, scratch, (a,) in blocks(value, gradient, slots["accumulator"]):
            np.multiply(g, g, out=scratch)
            a += scratch
            np.sqrt(a, out=scratch)
            scratch += epsilon
            np.divide(g, scratch, out=scratch)
            scratch *= learning_rate
            w -= scratch
