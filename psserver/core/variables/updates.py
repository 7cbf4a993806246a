"""One update of one variable: the gradients of one push or of several, as their mean, through the variable's rule.

Knows no workers and no messages but gradients' arrays. May import the rules, `pswire`'s pure half and numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from psserver.core.array_tasks import ArrayTask
from psserver.core.variables.delay_compensation import Backup, compensated, corrected
from pswire.messages import Gradient
from pswire.optimizers import COMPUTE_DTYPES, Rule, Step
from pswire.tensors.compression import Packed, unpacked
from pswire.tensors.values import Array, IndexedSlices, not_finite


class Updated(Protocol):
    """What has a value and slots."""

    value: Array
    slots: dict[str, Array]


@dataclass(slots=True, eq=False)
class Update:
    """An update that is decided on; `run` does it.

    Attributes:
        variable: is changed in place.
        rule: what is done; that of the variable when this was decided.
        contributions: a gradient of each push, borrowed, and the weights that it was computed with, if it is to be
            compensated for its delay.
        strength: of that compensation.
        step: when this takes place.
    """

    variable: Updated
    rule: Rule
    contributions: Sequence[tuple[Gradient, Backup | None]]
    strength: float
    step: Step

    def task(self, name: str) -> ArrayTask:
        """What is to be done to the variable of this name."""
        effort, divisible = 0, self.rule.element_wise
        for gradient, _ in self.contributions:
            array = gradient.array
            if isinstance(array, Packed):
                effort += array.size * array.dtype.itemsize
            else:
                effort += array.nbytes
                divisible = divisible and isinstance(array, np.ndarray) and array.flags.c_contiguous
        if divisible:
            return ArrayTask(name, effort, self.run, self.part, self.variable.value.size)
        return ArrayTask(name, effort, self.run)

    def run(self) -> None:
        """Changes the value and the slots."""
        self._apply(self.variable.value, self.variable.slots, self._gradient())

    def trial(self) -> Trial:
        """What `run` would make of value and slots, in every bit: of all elements, or of the rows that change."""
        value, slots, gradient = self.variable.value, self.variable.slots, self._gradient()
        if isinstance(gradient, IndexedSlices):
            rows = gradient.indices
            value, slots = value[rows], {name: slot[rows] for name, slot in slots.items()}
            self._apply(value, slots, IndexedSlices(gradient.values, np.arange(len(rows)), value.shape))
            return Trial(self.variable, value, slots, rows)
        value, slots = value.copy(), {name: slot.copy() for name, slot in slots.items()}
        self._apply(value, slots, gradient)
        return Trial(self.variable, value, slots)

    def _apply(self, value: Array, slots: dict[str, Array], gradient: Array | IndexedSlices) -> None:
        if isinstance(gradient, IndexedSlices):
            self.rule.sparse(value, slots, gradient, self.step)
        else:
            self.rule.dense(value, slots, gradient, self.step)

    def _gradient(self) -> Array | IndexedSlices:
        """The mean of all; of rows, each once and in rising order."""
        value = self.variable.value
        gradient = mean(
            [
                unpacked(one.array) if then is None else compensated(unpacked(one.array), value, then, self.strength)
                for one, then in self.contributions
            ]
        )
        if isinstance(gradient, IndexedSlices):
            with np.errstate(all="ignore"):
                return gradient.summed()
        return gradient

    def part(self, start: int, stop: int) -> None:
        """Changes the elements from `start` to `stop`: what `run` would make of them, in every bit."""
        value = self.variable.value.reshape(-1)[start:stop]
        slots = {name: slot.reshape(-1)[start:stop] for name, slot in self.variable.slots.items()}
        gradients = []
        for gradient, backup in self.contributions:
            stretch = _stretch(gradient.array, start, stop)
            if backup is not None and backup.rows is None:
                stretch = corrected(stretch, value, backup.elements(start, stop), self.strength)
            gradients.append(stretch)
        mine = mean(gradients)
        assert not isinstance(mine, IndexedSlices), "a mean of arrays"
        self.rule.dense(value, slots, mine, self.step)


@dataclass(slots=True, eq=False)
class Trial:
    """An update that was computed on copies: value and slots, all of them or some `rows`, as they would be."""

    variable: Updated
    value: Array
    slots: dict[str, Array]
    rows: Array | None = None

    @property
    def fault(self) -> str:
        """Which array has elements that are not finite, and how many; empty: none has."""
        for name, array in (("", self.value), *self.slots.items()):
            bad = not_finite(array)
            if bad:
                return f"{bad:,} of {array.size:,} elements" + (f" of its slot {name!r}" if name else "")
        return ""

    def keep(self) -> None:
        """Makes the variable what this is."""
        where = ... if self.rows is None else self.rows
        self.variable.value[where] = self.value
        for name, slot in self.slots.items():
            self.variable.slots[name][where] = slot


def _stretch(gradient: Array | IndexedSlices | Packed, start: int, stop: int) -> Array:
    if isinstance(gradient, Packed):
        return gradient.elements(start, stop)
    assert isinstance(gradient, np.ndarray), "asked for before"
    return gradient.reshape(-1)[start:stop]


def mean(gradients: Sequence[Array | IndexedSlices]) -> Array | IndexedSlices:
    """Their sum over their number, in the order given; rows stay rows if all of them are. One by itself is not copied.

    Of float16, sums of arrays are float32, as rules compute.
    """
    first, *others = gradients
    if not others:
        return first
    with np.errstate(all="ignore"):
        if all(isinstance(one, IndexedSlices) for one in gradients):
            for other in others:
                first = first + other
            return first / len(gradients)
        total = np.zeros(first.shape, COMPUTE_DTYPES[first.dtype])
        for one in gradients:
            total = one + total if isinstance(one, IndexedSlices) else np.add(total, one, out=total)
        total /= len(gradients)
        return total
