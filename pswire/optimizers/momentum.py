"""Gradient descent with plain or Nesterov momentum."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pswire.optimizers.element_wise import ElementWise
from pswire.optimizers.numba_compiler import Loop, Numbers, Slots, loop
from pswire.optimizers.optimizer import OptimizerSpec, Step
from pswire.specs.spec import Flag, Share
from pswire.tensors.values import Array


@dataclass(frozen=True)
class Momentum(OptimizerSpec, ElementWise, kind="momentum"):
    """Gradient descent with momentum, or Nesterov's with `nesterov=True`. Slot: `momentum`, zero at first.

        m <- momentum * m + g
        w <- w - learning_rate * m                              (plain)
        w <- w - learning_rate * (g + momentum * m)             (Nesterov)

    Lazy: rows that are not named keep their m as it is.

    Source: I. Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013,
    in the form of TensorFlow's MomentumOptimizer and torch.optim.SGD (the learning rate outside of m).

    Args:
        learning_rate: a number from 0 up, or a schedule (`psworker.schedules`) of the server's global step.
        momentum: share of m that remains at each update; from 0 to below 1, by default 0.9.
        nesterov: whether a step looks ahead by the next one; by default not.
    """

    _slots = ("momentum",)
    momentum: Share = 0.9
    nesterov: Flag = False

    def _loop(self) -> Loop | None:
        return _momentum

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        return self.momentum, step.learning_rate, float(self.nesterov)

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        (m,) = slots
        momentum, rate, nesterov = numbers
        m *= momentum
        m += g
        if nesterov:
            np.multiply(m, momentum, out=scratch)
            scratch += g
            scratch *= rate
        else:
            np.multiply(m, rate, out=scratch)
        w -= scratch


@loop(slots=1, numbers=3)
def _momentum(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    (m,) = slots
    momentum, rate, nesterov = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            m[i, j] = m[i, j] * momentum + g[r, j]
            w[i, j] -= (m[i, j] * momentum + g[r, j] if nesterov else m[i, j]) * rate
