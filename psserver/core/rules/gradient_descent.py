"""Plain gradient descent on a dense gradient. No slots. May import numpy, `pswire`'s pure half and the kernels."""

from __future__ import annotations

import numpy as np

from psserver.core.rules.kernels import blocks, check_dtype
from pswire import specs
from pswire.values import Array


class GradientDescentRule:
    """Formula and source: `pswire.specs.GradientDescent`."""

    def __init__(self, spec: specs.GradientDescent) -> None:
        self._learning_rate = float(spec.learning_rate)

    def slots(self, value: Array) -> dict[str, Array]:
        """None; raises `InvalidMessage` when the variable's dtype is not floating."""
        check_dtype(value)
        return {}

    @np.errstate(all="ignore")
    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: int) -> None:
        """One step against the gradient."""
        for w, g, scratch, _ in blocks(value, gradient):
            np.multiply(g, self._learning_rate, out=scratch)
            w -= scratch
