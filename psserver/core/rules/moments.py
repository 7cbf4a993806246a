"""What the family of Adam shares: the moving averages of gradients and their squares, and their correction.

No rule itself. May import numpy, `pswire`'s pure half, the kernels and the limits.
"""

from __future__ import annotations

import math

import numpy as np

from psserver.core.rules.contract import Step
from psserver.core.rules.kernels import positive
from psserver.core.rules.limits import Limits
from pswire import optimizers
from pswire.tensors.values import Array


class Moments:
    """The averages m and v of a `pswire.optimizers.MomentsSpec`, and the direction that they give."""

    def __init__(self, spec: optimizers.MomentsSpec) -> None:
        self._beta1, self._beta2 = float(spec.beta1), float(spec.beta2)
        self._epsilon = float(spec.epsilon)

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """The shares of the old and of the new, in m and in v."""
        return self._beta1, 1 - self._beta1, self._beta2, 1 - self._beta2

    def corrected(self, step: Step, value: Array) -> tuple[float, float]:
        """(factor, epsilon) that make factor * m / (sqrt(v) + epsilon) of m_hat / (sqrt(v_hat) + epsilon).

        So the corrections are numbers, not passes over the arrays: numerator and denominator are both multiplied by
        sqrt(1 - beta2^t), as at the end of section 2 of the paper.
        """
        root = math.sqrt(1 - self._beta2**step.number)
        return root / (1 - self._beta1**step.number), positive(self._epsilon * root, value)

    def growth(self, rate: float, limits: Limits) -> float:
        """Of v by the gradient's square, and of the value by what an epsilon alone, at t = 1, would make of m.

        m, an average, stays below `limits.state`. With beta1^2 <= beta2 a step is hardly longer than the rate; with
        others, a beta2 of 0 for one, v may be zero where m is not.
        """
        epsilon = max(self._epsilon, limits.tiny)
        direction = limits.state / (epsilon * (1 - self._beta1) * math.sqrt(1 - self._beta2))
        if direction > limits.most:
            return math.inf
        return (limits.gradient**2 + rate * direction) / limits.most


def move(g: Array, m: Array, v: Array, scratch: Array, shares: tuple[float, ...]) -> None:
    """Moves both averages towards the gradient and its square."""
    beta1, rest1, beta2, rest2 = shares
    np.multiply(g, rest1, out=scratch)
    m *= beta1
    m += scratch
    np.multiply(g, g, out=scratch)
    scratch *= rest2
    v *= beta2
    v += scratch


def direct(m: Array, v: Array, scratch: Array, factor: float, epsilon: float) -> None:
    """Leaves in `scratch`: factor * m / (sqrt(v) + epsilon)."""
    np.sqrt(v, out=scratch)
    scratch += epsilon
    np.divide(m, scratch, out=scratch)
    scratch *= factor
