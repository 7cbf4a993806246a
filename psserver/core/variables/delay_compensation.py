"""Delay compensation: the weights last served to each worker, and the correction of late gradients with them.

    g + strength * g * g * (w_now - w_served)

Source: S. Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017, equation 10 and
algorithm 2 (there the server keeps w_bak(m) for each worker m). The correction is at most half of `Limits.gradient`
(5e9 in float32), so that an ordinary gradient stays ordinary however far the weights have moved. The served weights are
the arrays of the answers themselves, without a copy, so such an answer never lies in memory of a caller.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pswire.messages import Gradient, ServedState, Value
from pswire.optimizers.optimizer import LIMITS
from pswire.tensors.compression import Packed
from pswire.tensors.values import Array, IndexedSlices


@dataclass(frozen=True, slots=True, eq=False)
class ServedWeights:
    """The version and rows of a variable that were served to a worker; None: all rows."""

    version: int
    array: Array | Packed
    rows: Array | None = None


class ServedWeightsCache:
    """Served weights by worker and variable; of a table, the rows that were pulled last.

    Weights beyond the bytes that are free are not kept: gradients computed with them are then not compensated.
    """

    def __init__(self) -> None:
        self._served: dict[str, dict[str, ServedWeights]] = {}
        self.nbytes = 0

    def state(self) -> tuple[ServedState, ...]:
        """All weights that are kept; their arrays are never written again."""
        return tuple(
            [
                ServedState(worker, name, one.version, one.array, one.rows)
                for worker, served in self._served.items()
                for name, one in served.items()
            ]
        )

    def restore(self, state: Iterable[ServedState]) -> None:
        """Continue from a `state`."""
        for one in state:
            weights = ServedWeights(one.version, one.array, one.rows)
            self._served.setdefault(one.worker, {})[one.name] = weights
            self.nbytes += one.array.nbytes

    def keep(self, worker: str, value: Value, free: float, rows: Array | None = None) -> None:
        """Keep a whole value, or rows of one. A value without an array was served before."""
        if value.array is not None:
            served, nbytes = self._served.setdefault(worker, {}), value.array.nbytes
            if value.name in served:
                self.nbytes -= served.pop(value.name).array.nbytes
            if self.nbytes + nbytes <= free:
                served[value.name] = ServedWeights(value.version, value.array, rows)
                self.nbytes += nbytes

    def find(self, worker: str, gradient: Gradient) -> ServedWeights | None:
        """The weights that a gradient was computed with; None if the worker has received newer weights since."""
        weights = self._served.get(worker, {}).get(gradient.name)
        return weights if weights is not None and weights.version == gradient.version else None

    def forget(self, workers: Iterable[str]) -> None:
        """Drop the weights of workers that are gone."""
        for worker in workers:
            self.nbytes -= sum(weights.array.nbytes for weights in self._served.pop(worker, {}).values())


@np.errstate(all="ignore")
def compensated(
    gradient: Array | IndexedSlices, now: Array, served: ServedWeights, strength: float
) -> Array | IndexedSlices:
    """The gradient, of the variable or of rows of it, as it would be, to first order, with its weights of `now`.

    Unchanged for rows that were not among the weights `served`, with which it was computed.
    """
    weights = served.array.unpacked() if isinstance(served.array, Packed) else served.array
    if not isinstance(gradient, IndexedSlices):
        return gradient if served.rows is not None else corrected(gradient, now - weights, strength)
    rows = gradient.summed()
    moved = now.take(rows.indices, axis=0)
    if served.rows is None:
        moved -= weights.take(rows.indices, axis=0)
    else:
        found, order = np.isin(rows.indices, served.rows), np.argsort(served.rows, kind="stable")
        moved[found] -= weights[order[np.searchsorted(served.rows, rows.indices[found], sorter=order)]]
        moved[~found] = 0
    return rows.with_values(corrected(rows.values, moved, strength))


@np.errstate(all="ignore")
def corrected(gradient: Array, moved: Array, strength: float) -> Array:
    """The formula of the module, elementwise, for weights that have `moved`."""
    moved, limits = np.asarray(moved), LIMITS.get(moved.dtype.name)
    moved *= gradient
    moved *= gradient
    if limits is None:
        moved *= strength
    else:  # within bounds that keep infinity infinite and zero zero
        moved *= min(max(strength, limits.tiny), limits.maximum)
        np.clip(moved, -limits.gradient / 2, limits.gradient / 2, out=moved)
    moved += gradient
    return moved
