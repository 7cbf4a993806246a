"""The weights that each worker was served last, and what a late gradient becomes with them: delay compensation.

    g + strength * g * g * (w_now - w_then)

Source: S. Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017, equation 10 and
algorithm 2 (there the server keeps w_bak(m) for each worker m). What is added to a gradient is 5e9 at most in float32
(half of `Limits.gradient`), so that an ordinary gradient stays ordinary however far the weights have gone. Costs no
copy: nobody writes into an answer's arrays, which is why no answer of a shard that compensates is put in a caller's
room. May import the rules' limits, `pswire`'s pure half and numpy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pswire.messages import Choice, Gradient, Value
from pswire.optimizers.limits import LIMITS
from pswire.tensors.compression import Packed
from pswire.tensors.values import Array, IndexedSlices


@dataclass(frozen=True, slots=True, eq=False)
class Backup:
    """What a worker was served of a variable: at which version, and of which rows (None: all)."""

    version: int
    array: Array | Packed
    rows: Array | None = None

    def whole(self) -> Array:
        """What the worker has computed with: all that it was served."""
        return self.array.unpacked() if isinstance(self.array, Packed) else self.array

    def elements(self, start: int, stop: int) -> Array:
        """Those from `start` to `stop` of that, flat."""
        if isinstance(self.array, Packed):
            return self.array.elements(start, stop)
        return self.array.reshape(-1)[start:stop]


class Backups:
    """By worker and variable. Of a table, it has the rows that were pulled last.

    What there is no `room` for, in bytes, is not kept: the gradient of its worker is then not compensated.
    """

    def __init__(self) -> None:
        self._served: dict[str, dict[str, Backup]] = {}
        self.nbytes = 0

    def keep(self, worker: str, values: Iterable[Value], room: float) -> None:
        """Notes whole values that are on their way to a worker. What is not modified it has been served before."""
        for value in values:
            if value.array is not None:
                self._keep(worker, value.name, Backup(value.version, value.array), room)

    def keep_choice(self, worker: str, choice: Choice, value: Value, room: float) -> None:
        """Notes rows that are on their way to a worker."""
        if not choice.slot and value.array is not None:
            self._keep(worker, choice.name, Backup(value.version, value.array, choice.rows), room)

    def _keep(self, worker: str, name: str, backup: Backup, room: float) -> None:
        served = self._served.setdefault(worker, {})
        if name in served:
            self.nbytes -= served.pop(name).array.nbytes
        if self.nbytes + backup.array.nbytes <= room:
            served[name] = backup
            self.nbytes += backup.array.nbytes

    def find(self, worker: str, gradient: Gradient) -> Backup | None:
        """The weights that a gradient was computed with; None if the worker has been served others since."""
        backup = self._served.get(worker, {}).get(gradient.name)
        return backup if backup is not None and backup.version == gradient.version else None

    def forget(self, workers: Iterable[str]) -> None:
        """Drops what was kept for workers that are gone."""
        for worker in workers:
            self.nbytes -= sum(backup.array.nbytes for backup in self._served.pop(worker, {}).values())


def compensated(gradient: Array | IndexedSlices, now: Array, backup: Backup, strength: float) -> Array | IndexedSlices:
    """The gradient as it would be, to first order, with the weights of now. Rows that were not served stay as they are.

    Args:
        gradient: of the shape and dtype of the variable, or some of its rows.
        now: the variable.
        backup: what it was when the gradient was computed.
        strength: 0 leaves the gradient as it is.
    """
    with np.errstate(all="ignore"):
        if not isinstance(gradient, IndexedSlices):
            if backup.rows is not None:
                return gradient
            return corrected(gradient, now, backup.whole(), strength)
        rows = gradient.summed()
        moved = now.take(rows.indices, axis=0)
        if backup.rows is None:
            moved -= backup.whole().take(rows.indices, axis=0)
        else:
            moved -= _rows_then(backup, rows.indices, moved)
        return rows.with_values(_corrected(rows.values, moved, strength))


@np.errstate(all="ignore")
def corrected(gradient: Array, now: Array, then: Array, strength: float) -> Array:
    """The formula above, element by element."""
    return _corrected(gradient, np.asarray(now - then), strength)


def _corrected(gradient: Array, moved: Array, strength: float) -> Array:
    limits = LIMITS.get(moved.dtype.name)
    moved *= gradient
    moved *= gradient
    if limits is None:
        moved *= strength
    else:  # in bounds within which infinity stays infinity and zero zero
        moved *= min(max(strength, limits.tiny), limits.most)
        np.clip(moved, -limits.gradient / 2, limits.gradient / 2, out=moved)
    moved += gradient
    return moved


def _rows_then(backup: Backup, indices: Array, now: Array) -> Array:
    """Rows as they were served; those that were not, as they are now."""
    assert backup.rows is not None
    if not len(backup.rows):
        return now
    order = np.argsort(backup.rows, kind="stable")
    served = backup.rows[order]
    places = np.minimum(np.searchsorted(served, indices), len(served) - 1)
    found = served[places] == indices
    then = now.copy()
    then[found] = backup.whole()[order[places[found]]]
    return then
