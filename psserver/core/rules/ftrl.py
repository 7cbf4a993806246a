"""Follow the regularized leader, proximal, element by element.

May import numpy, `pswire`'s pure half, the kernels and the limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from psserver.core.rules.contract import Step
from psserver.core.rules.kernels import ElementWise, positive
from psserver.core.rules.limits import Limits, within
from pswire import optimizers
from pswire.tensors.values import Array


class FtrlRule(ElementWise):
    """Formula and source: `pswire.optimizers.Ftrl`. With a power of 0.5 it has a fused loop."""

    def __init__(self, spec: optimizers.Ftrl) -> None:
        super().__init__(spec, loop="ftrl" if spec.learning_rate_power == 0.5 else None)
        self._l1, self._l2 = float(spec.l1), float(spec.l2)
        self._power = float(spec.learning_rate_power)
        self._initial_accumulator = float(spec.initial_accumulator)

    def slots(self, value: Array) -> dict[str, Array]:
        """As every rule's, but the linear slot starts by the value, and no accumulator is zero, for it divides."""
        slots = super().slots(value)
        accumulator, linear = (slots[name] for name in self._names)
        with np.errstate(all="ignore"):
            accumulator[...] = positive(self._initial_accumulator, value)
            self._raised(accumulator, linear)
            linear *= value
            np.negative(linear, out=linear)
        return slots

    def numbers(self, step: Step, value: Array) -> tuple[float, ...]:
        """The learning rate, alone and times both regularizations."""
        rate = step.learning_rate
        return rate, rate * self._l1, rate * self._l2

    def growth(self, rate: float, limits: Limits) -> float:
        """With a power p up to 0.5, and |z| at most y n^p: then |w| is at most y, and y grows by rate * |g| / n_new^p.

        That is at most rate * |g|, for n_new is at least g^2, and where g is below 1, |g| / n_new^p is too. While n
        does not get beyond twice `limits.squares`, and y not beyond twice `limits.state`, z is finite. Larger powers
        have no limit: n^p times y would be beyond every number.
        """
        if self._power > 0.5 or self._initial_accumulator > limits.squares:
            return math.inf
        return max(limits.gradient**2 / limits.squares, rate * limits.gradient / limits.state)

    def settled(self, value: Array, slots: dict[str, Array], limits: Limits) -> bool:
        """As in `Rule`, where the linear slot's limit is that of the value times the power of the accumulator."""
        accumulator, linear = (slots[name] for name in self._names)
        if not (within(value, limits.state) and within(accumulator, limits.squares)):
            return False
        most = np.empty_like(accumulator)
        self._raised(accumulator, most)
        most *= limits.state
        return bool((np.abs(linear) <= most).all())

    def block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        """Adds to the linear slot, and solves for the value; the old one is room for it on the way."""
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
        if self._power == 0.5:
            np.sqrt(n, out=out)
        else:
            np.power(n, self._power, out=out)
