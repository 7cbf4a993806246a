"""Plain gradient descent, element by element. No slots. May import numpy, `pswire`'s pure half and the kernels."""

from __future__ import annotations

import numpy as np

from psserver.core.rules.kernels import ElementWise, blocks, check_dtype
from pswire import specs
from pswire.values import Array


class GradientDescentRule(ElementWise):
    """Formula and source: `pswire.specs.GradientDescent`."""

    def __init__(self, spec: specs.GradientDescent) -> None:
        """Its only hyperparameter is the learning rate, which comes with each update."""

    def slots(self, value: Array) -> dict[str, Array]:
        """None; raises `InvalidMessage` when the variable's dtype is not floating."""
        check_dtype(value)
        return {}

    @np.errstate(all="ignore")
    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: int, learning_rate: float) -> None:
        """One step against the gradient."""
        for w, g, scratch, _ in blocks(value, gradient):
            np.multiply(g, learning_rate, out=scratch)
            w -= scratch
