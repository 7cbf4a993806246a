"""The portions that a worker has claimed, and the sum of their gradients until it is pushed. Thread-safe.

One thread computes portions and claims them; another one may push the sum meanwhile, since others wait for that.
"""

import logging
import threading
import time
from collections.abc import Sequence

import numpy as np

from pswire.messages import CountedPortions, Portion
from pswire.tensors.values import Array, IndexedSlices
from psworker.client.client import Client
from psworker.model.base_variable import BaseVariable

logger = logging.getLogger(__name__)

#: Seconds after which a worker pushes what it has claimed, also if it has more to compute: others wait for that if it
#: becomes slow.
PUSH_SECONDS = 0.25


class ClaimedPortions:
    """The claimed portions of the evaluation `evaluation` of the minimization `name`; 0: none has begun."""

    def __init__(self, client: Client, name: str, variables: Sequence[BaseVariable]) -> None:
        self._client, self._name, self._variables = client, name, variables
        self._sum = GradientSum(variables)
        self._withdrawn: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self.evaluation, self._rollbacks = 0, -1

    def begin(self, evaluation: int) -> bool:
        """Discard what belongs to another evaluation, or to one before all shards went back; whether that is so."""
        with self._lock:
            at = evaluation, self._client.rollback.count
            if at == (self.evaluation, self._rollbacks):
                return False
            self.evaluation, self._rollbacks = at
            self._withdrawn = ()
            self._sum.clear()
            return True

    def withdrawn(self, evaluation: int) -> tuple[int, ...]:
        """The portions of this evaluation whose sums were dropped since the last call."""
        with self._lock:
            if evaluation != self.evaluation:
                return ()
            withdrawn, self._withdrawn = self._withdrawn, ()
            return withdrawn

    def add(self, portion: Portion, loss: float, gradients: Sequence[Array | IndexedSlices | None], size: int) -> None:
        """Claim a portion with `size` examples, their mean loss and mean gradients; push the sum if it is time to."""
        with self._lock:  # a sum that is pushed has all that is claimed
            if self._client.rollback.count != self._rollbacks:
                return
            if not self._client.evaluations.claim_portion(self._name, self.evaluation, portion.number, loss * size):
                return
            if portion.alone:
                alone = GradientSum(self._variables)
                alone.add(portion.number, gradients, size)
                self._push(alone)
                return
            self._sum.add(portion.number, gradients, size)
            if time.monotonic() - self._sum.since >= PUSH_SECONDS:
                self._push(self._sum)

    def push(self, evaluation: int) -> None:
        """Push the sum, if there is one, of this evaluation."""
        with self._lock:
            if evaluation == self.evaluation:
                self._push(self._sum)

    def _push(self, total: "GradientSum") -> None:
        if not total.numbers:
            return
        portions = CountedPortions(self._name, self.evaluation, tuple(total.numbers))
        reason = self._client.evaluations.push_sum(total.arrays(), portions, self._rollbacks)
        total.clear()
        if reason:
            logger.info("a sum of gradients is discarded: %s", reason)
            self._withdrawn += portions.numbers


class GradientSum:
    """The sum of the gradients of claimed portions, in float64; `since` the first one was added (monotonic)."""

    def __init__(self, variables: Sequence[BaseVariable]) -> None:
        self._variables = variables
        self._totals = [np.zeros(variable.shape) for variable in variables]
        self.numbers: list[int] = []
        self.since = 0.0

    def clear(self) -> None:
        """Begin again."""
        if self.numbers:
            self.numbers = []
            for total in self._totals:
                total[...] = 0.0

    @np.errstate(all="ignore")
    def add(self, number: int, found: Sequence[Array | IndexedSlices | None], examples: int) -> None:
        """Add the mean gradients of a portion, times its number of `examples`; None is 0."""
        if not self.numbers:
            self.since = time.monotonic()
        self.numbers.append(number)
        for total, gradient in zip(self._totals, found, strict=True):
            if isinstance(gradient, IndexedSlices):
                rows = gradient.summed()
                total[rows.indices] += rows.values.astype(np.float64) * examples
            elif gradient is not None:
                total += np.asarray(gradient, np.float64) * examples

    @np.errstate(all="ignore")
    def arrays(self) -> dict[str, Array]:
        """By variable, in its dtype."""
        pairs = zip(self._variables, self._totals, strict=True)
        return {variable.name: total.astype(variable.dtype) for variable, total in pairs}
