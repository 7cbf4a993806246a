"""Lamb: Adam's direction, as long as the weights. Needs norms over all elements, and so two passes.

May import numpy, `pswire`'s pure half, the kernels, the limits and the moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from psserver.core.rules.contract import Step
from psserver.core.rules.kernels import COMPUTE_DTYPES, all_within, blocks, row_parts, slots_like
from psserver.core.rules.limits import Limits
from psserver.core.rules.moments import Moments, direct, move
from pswire import optimizers
from pswire.tensors.values import Array, IndexedSlices

#: (value, slots, gradient) of some rows, or of all.
_Part: TypeAlias = tuple[Array, dict[str, Array], Array]


class LambRule:
    """Formula and source: `pswire.optimizers.Lamb`."""

    def __init__(self, spec: optimizers.Lamb) -> None:
        self._names = spec.slot_names()
        self._moments = Moments(spec)
        self._weight_decay = float(spec.weight_decay)

    def slots(self, value: Array) -> dict[str, Array]:
        """The slots that the spec names, zero; raises `InvalidMessage` when the variable's dtype is not floating."""
        return slots_like(value, dict.fromkeys(self._names, 0.0))

    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: Step) -> None:
        """As in `Rule`."""
        self._update(lambda: [(value, slots, gradient)], value, step)

    def sparse(self, value: Array, slots: dict[str, Array], rows: IndexedSlices, step: Step) -> None:
        """As in `Rule`, with the norms over the rows that are named."""
        self._update(lambda: row_parts(value, slots, rows), value, step)

    def growth(self, rate: float, limits: Limits) -> float:
        """That of the moments where the norms cannot be used, else the rate times the norm of the weights.

        That norm can be used while the square of no weight overflows: for up to 2^34 weights it is at most
        1e6 * sqrt(most).
        """
        if self._weight_decay > 10 or rate * self._weight_decay > 2:
            return math.inf
        return self._moments.growth(rate, limits) + rate * 1e6 * (math.sqrt(limits.most) / limits.most)

    def settled(self, value: Array, slots: dict[str, Array], limits: Limits) -> bool:
        """As in `Rule`."""
        return all_within(value, slots, ("v",), limits)

    @np.errstate(all="ignore")
    def _update(self, parts: Callable[[], Iterable[_Part]], value: Array, step: Step) -> None:
        """Walks twice over the parts: only after the first walk is the length of the step known."""
        factor, epsilon = self._moments.corrected(step, value)
        weights, update = self._move_averages(parts(), factor, epsilon)
        usable = 0 < weights < math.inf and 0 < update < math.inf
        lengths: tuple[float, ...] = (step.learning_rate * (weights / update if usable else 1.0),)
        if usable and lengths[0] > np.finfo(COMPUTE_DTYPES[value.dtype]).max:  # and yet the step may be no such number
            lengths = (1 / update, step.learning_rate * weights)
        self._move_values(parts(), factor, epsilon, *lengths)

    def _move_averages(self, parts: Iterable[_Part], factor: float, epsilon: float) -> tuple[float, float]:
        """Updates the slots; returns the norms of the value and of u."""
        weights = updates = 0.0
        for value, slots, gradient in parts:
            for w, g, u, (m, v) in blocks(value, gradient, *(slots[name] for name in self._names)):
                move(g, m, v, u, self._moments.shares)
                self._direct(w, m, v, u, factor, epsilon)
                np.multiply(u, u, out=u)
                updates += float(np.add.reduce(u, dtype=np.float64))
                np.multiply(w, w, out=u)
                weights += float(np.add.reduce(u, dtype=np.float64))
        return math.sqrt(weights), math.sqrt(updates)

    def _move_values(self, parts: Iterable[_Part], factor: float, epsilon: float, *lengths: float) -> None:
        """Moves the value by u times the lengths, one after the other; there is no room to keep u, it is made again."""
        for value, slots, gradient in parts:
            for w, _, u, (m, v) in blocks(value, gradient, *(slots[name] for name in self._names)):
                self._direct(w, m, v, u, factor, epsilon)
                for length in lengths:
                    u *= length
                w -= u

    def _direct(self, w: Array, m: Array, v: Array, u: Array, factor: float, epsilon: float) -> None:
        """Leaves u of the formula in `u`."""
        direct(m, v, u, factor, epsilon)
        if self._weight_decay:
            u += w * self._weight_decay
