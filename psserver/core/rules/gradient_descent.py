"""Plain gradient descent, element by element. No slots.

May import numpy, `pswire`'s pure half, the kernels and the limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psserver.core.rules.contract import Step
from psserver.core.rules.kernels import ElementWise
from psserver.core.rules.limits import Limits
from pswire import optimizers
from pswire.tensors.values import Array


class GradientDescentRule(ElementWise):
    """Formula and source: `pswire.optimizers.GradientDescent`."""

    def __init__(self, spec: optimizers.GradientDescent) -> None:
        super().__init__(spec, loop="gradient_descent")

    def numbers(self, step: Step, value: Array) -> tuple[float, ...]:
        """The learning rate."""
        return (step.learning_rate,)

    def growth(self, rate: float, limits: Limits) -> float:
        """A step is the rate times the gradient."""
        return rate * limits.gradient / limits.most

    def block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        """One step against the gradient."""
        (rate,) = numbers
        np.multiply(g, rate, out=scratch)
        w -= scratch
