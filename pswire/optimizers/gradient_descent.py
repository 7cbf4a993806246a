"""Gradient descent. No slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pswire.optimizers.element_wise import ElementWise
from pswire.optimizers.numba_compiler import Loop, Numbers, Slots, loop
from pswire.optimizers.optimizer import OptimizerSpec, Step
from pswire.tensors.values import Array


@dataclass(frozen=True)
class GradientDescent(OptimizerSpec, ElementWise, kind="gradient_descent"):
    """Plain stochastic gradient descent.

        w <- w - learning_rate * g

    Source: H. Robbins, S. Monro, "A Stochastic Approximation Method", 1951.

    Args:
        learning_rate: a number from 0 up, or a schedule (`psworker.schedules`) of the server's global step.
    """

    def _loop(self) -> Loop | None:
        return _gradient_descent

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        return (step.learning_rate,)

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        (rate,) = numbers
        np.multiply(g, rate, out=scratch)
        w -= scratch


@loop(slots=0, numbers=1)
def _gradient_descent(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    (rate,) = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            w[i, j] -= g[r, j] * rate
