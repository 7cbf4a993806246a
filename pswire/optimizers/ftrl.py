"""Follow the regularized leader, proximal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pswire.optimizers.element_wise import TINY, ElementWise, ElementWiseRule
from pswire.optimizers.numba_compiler import Loop, Numbers, Slots, loop
from pswire.optimizers.optimizer import Limits, OptimizerSpec, Step, within
from pswire.specs.spec import NotNegative, Positive, ShareOrOne
from pswire.tensors.values import Array


class FtrlRule(ElementWiseRule):
    """Update rule of `Ftrl`, whose linear slot depends on the value."""

    spec: "Ftrl"

    def slots(self, value: Array) -> dict[str, Array]:
        """As in `Rule`; no accumulator is zero, because it is a divisor."""
        slots = super().slots(value)
        n, z = slots["accumulator"], slots["linear"]
        with np.errstate(all="ignore"):
            np.maximum(n, TINY[value.dtype], out=n)
            self.spec._raised(n, z)
            z *= value
            np.negative(z, out=z)
        return slots

    def within_limits(self, value: Array, slots: dict[str, Array], limits: Limits) -> bool:
        """As in `Rule`, where the linear slot's limit is that of the value times the power of the accumulator."""
        n, z = slots["accumulator"], slots["linear"]
        if not (within(value, limits.state) and within(n, limits.squares)):
            return False
        most = np.empty_like(n)
        self.spec._raised(n, most)
        most *= limits.state
        return bool((np.abs(z) <= most).all())


@dataclass(frozen=True)
class Ftrl(OptimizerSpec, ElementWise, kind="ftrl"):
    """Follow the regularized leader: Adagrad's steps, and weights that are exactly zero where l1 outweighs them.

        n_new = n + g^2
        z <- z + learning_rate * g - (n_new^p - n^p) * w        (p is learning_rate_power)
        w <- (clip(z, -learning_rate * l1, learning_rate * l1) - z) / (n_new^p + learning_rate * l2)
        n <- n_new

    Slots: `accumulator` n, which starts at initial_accumulator, and `linear` z, which starts at -n^p * w, so that the
    first weights are where the regularization is centered. z is the paper's z times the learning rate: with a constant
    rate the results are the same, and a rate that changes by a schedule does not rescale what was learned before.
    Without l1 and l2, and with p of 0.5, this is Adagrad. The value is computed from the slots: the next update
    overwrites an assigned value. Lazy: rows that are not named keep everything as it is.

    Source: H. B. McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, algorithm 1, with beta of
    0. TensorFlow's FtrlOptimizer writes the power with a minus, has twice l2 in the denominator, and starts z at zero.

    Args:
        learning_rate: a number from 0 up, or a schedule (`psworker.schedules`) of the server's global step.
        l1: strength of the penalty on |w|, which sets weights to 0; from 0 up, by default 0.
        l2: strength of the penalty on w^2; from 0 up, by default 0.
        learning_rate_power: exponent of the accumulator, by which learning rates fall; from 0 to 1, by default 0.5.
        initial_accumulator: first value of the accumulator; above 0, by default 0.1.
    """

    _slots = ("accumulator", "linear")
    _rule = FtrlRule
    l1: NotNegative = 0.0
    l2: NotNegative = 0.0
    learning_rate_power: ShareOrOne = 0.5
    initial_accumulator: Positive = 0.1

    def _loop(self) -> Loop | None:
        return _ftrl if self.learning_rate_power == 0.5 else None

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        rate = step.learning_rate
        return rate, rate * self.l1, rate * self.l2

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        n, z = slots
        rate, l1, l2 = numbers
        self._raised(n, scratch)
        scratch *= w
        z += scratch
        np.multiply(g, g, out=scratch)
        n += scratch
        self._raised(n, scratch)
        w *= scratch
        z -= w
        np.multiply(g, rate, out=w)
        z += w
        np.clip(z, -l1, l1, out=w)
        w -= z
        scratch += l2
        w /= scratch

    def _raised(self, n: Array, out: Array) -> None:
        if self.learning_rate_power == 0.5:
            np.sqrt(n, out=out)
        else:
            np.power(n, self.learning_rate_power, out=out)


@loop(slots=2, numbers=3)
def _ftrl(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    n, z = slots
    rate, l1, l2 = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            total = z[i, j] + math.sqrt(n[i, j]) * w[i, j]
            n[i, j] += g[r, j] * g[r, j]
            root = math.sqrt(n[i, j])
            total = total - w[i, j] * root + g[r, j] * rate
            z[i, j] = total
            w[i, j] = ((-l1 if total < -l1 else l1 if total > l1 else total) - total) / (root + l2)
