"""Lamb: Adam's direction at the scale of the weights. Needs norms over all elements, and so two passes."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pswire.optimizers.adam import MomentsSpec, direction, move_averages
from pswire.optimizers.element_wise import TINY, blocks, check_bounds, row_blocks
from pswire.optimizers.optimizer import COMPUTE_DTYPES, Rule, Step
from pswire.specs.spec import NotNegative, Positive
from pswire.tensors.values import Array, IndexedSlices

#: (value, slots, gradient) of some rows, or of all.
_Part: TypeAlias = tuple[Array, dict[str, Array], Array]


class LambRule(Rule):
    """Update rule of `Lamb`."""

    spec: "Lamb"

    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: Step) -> None:
        """As in `Rule`."""
        self._update(lambda: [(value, slots, gradient)], value, step)

    def sparse(self, value: Array, slots: dict[str, Array], rows: IndexedSlices, step: Step) -> None:
        """As in `Rule`, with the norms over the rows that are named."""
        check_bounds(value, rows)
        self._update(lambda: row_blocks(value, slots, rows), value, step)

    @np.errstate(all="ignore")
    def _update(self, parts: Callable[[], Iterable[_Part]], value: Array, step: Step) -> None:
        """Passes twice over the parts: only after the first pass is the length of the step known."""
        root = math.sqrt(1 - self.spec.beta2**step.number)  # the correction of the averages as in Adam
        factor, epsilon = root / (1 - self.spec.beta1**step.number), max(self.spec.epsilon * root, TINY[value.dtype])
        weights, update = self._move_averages(parts(), factor, epsilon)
        usable = 0 < weights < math.inf and 0 < update < math.inf
        lengths: tuple[float, ...] = (step.learning_rate * (weights / update if usable else 1.0),)
        if usable and lengths[0] > np.finfo(COMPUTE_DTYPES[value.dtype]).max:  # though the step itself may be finite
            lengths = (1 / update, step.learning_rate * weights)
        for part, slots, gradient in parts():  # u is recomputed, because storing it would need another array
            for w, _, u, (m, v) in blocks(part, gradient, (slots["m"], slots["v"])):
                self._direct(w, m, v, u, factor, epsilon)
                for length in lengths:
                    u *= length
                w -= u

    def _move_averages(self, parts: Iterable[_Part], factor: float, epsilon: float) -> tuple[float, float]:
        """Updates the slots; returns the norms of the value and of u."""
        beta1, beta2 = self.spec.beta1, self.spec.beta2
        weights = updates = 0.0
        for value, slots, gradient in parts:
            for w, g, u, (m, v) in blocks(value, gradient, (slots["m"], slots["v"])):
                move_averages(g, m, v, u, beta1, 1 - beta1, beta2, 1 - beta2)
                self._direct(w, m, v, u, factor, epsilon)
                np.multiply(u, u, out=u)
                updates += float(np.add.reduce(u, dtype=np.float64))
                np.multiply(w, w, out=u)
                weights += float(np.add.reduce(u, dtype=np.float64))
        return math.sqrt(weights), math.sqrt(updates)

    def _direct(self, w: Array, m: Array, v: Array, u: Array, factor: float, epsilon: float) -> None:
        """Writes u of the formula into `u`."""
        direction(m, v, u, factor, epsilon)
        if self.spec.weight_decay:
            u += w * self.spec.weight_decay


@dataclass(frozen=True)
class Lamb(MomentsSpec, kind="lamb"):
    """Adam's direction at the scale of the weights, for very large batches. Slots: `m` and `v` as Adam's.

        u = m_hat / (sqrt(v_hat) + epsilon) + weight_decay * w
        w <- w - learning_rate * (|w| / |u|) * u

    with m_hat and v_hat as Adam's. |.| is the Euclidean norm over the whole variable; where one of the two norms is 0
    or overflows, their ratio counts as 1. Lazy: of a gradient by rows, the norms are those of the rows that are named.
    Of a variable that is split over several shards, each shard has the norms of its own rows.

    Source: Y. You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 Minutes", ICLR 2020,
    algorithm 2, with the identity for its phi.

    Args:
        learning_rate: a number from 0 up, or a schedule (`psworker.schedules`) of the server's global step; by default
            0.001.
        beta1, beta2: as of `Adam`.
        epsilon: what is added to the root; above 0, by default 1e-6.
        weight_decay: share of a weight that is added to the direction u; from 0 up, by default 0.01.
    """

    _rule = LambRule
    epsilon: Positive = 1e-6
    weight_decay: NotNegative = 0.01
