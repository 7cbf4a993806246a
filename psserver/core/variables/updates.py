"""One update of one variable: the mean of the gradients of one or several pushes, through the variable's rule.

Knows no workers, and of messages the gradients alone. May import the rules, `pswire`'s pure half and numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from psserver.core.array_tasks import ArrayTask
from psserver.core.variables.delay_compensation import ServedWeights, compensated, corrected
from psserver.core.variables.variable import Variable
from pswire.messages import Gradient
from pswire.optimizers import COMPUTE_DTYPES, Rule, Step
from pswire.tensors.compression import Packed, unpacked
from pswire.tensors.values import Array, IndexedSlices, not_finite

#: A gradient of a push, and the weights that it was computed with if it is to be compensated for its delay.
Contribution: TypeAlias = tuple[Gradient, ServedWeights | None]


@dataclass(slots=True, eq=False)
class Update:
    """An update that was decided; `run` does it.

    Attributes:
        variable: is changed in place.
        rule: that of the variable when this was decided.
        contributions: one per push; the arrays are borrowed.
        strength: of the delay compensation.
        step: when this takes place.
    """

    variable: Variable
    rule: Rule
    contributions: Sequence[Contribution]
    strength: float
    step: Step

    def task(self) -> ArrayTask:
        """The array task of this update."""
        cost, divisible = 0, self.rule.element_wise
        for gradient, _ in self.contributions:
            array = gradient.array
            if isinstance(array, Packed):
                cost += array.size * array.dtype.itemsize
            else:
                cost += array.nbytes
                divisible = divisible and isinstance(array, np.ndarray) and array.flags.c_contiguous
        name = self.variable.spec.name
        if divisible:
            return ArrayTask(name, cost, self.run, self.part, self.variable.value.size)
        return ArrayTask(name, cost, self.run)

    def run(self) -> None:
        """Change the value and the slots."""
        variable, gradient = self.variable, self._gradient()
        if isinstance(gradient, IndexedSlices):
            self.rule.sparse(variable.value, variable.slots, gradient, self.step)
        else:
            self.rule.dense(variable.value, variable.slots, gradient, self.step)

    def part(self, start: int, stop: int) -> None:
        """Change the elements from `start` to `stop`, to the same bits as `run`."""
        value = self.variable.value.reshape(-1)[start:stop]
        slots = {name: slot.reshape(-1)[start:stop] for name, slot in self.variable.slots.items()}
        gradients: list[Array | IndexedSlices] = []
        for gradient, served in self.contributions:
            array = gradient.array
            if isinstance(array, Packed):
                stretch = array.elements(start, stop)
            else:
                assert isinstance(array, np.ndarray), "rows are not divisible"
                stretch = array.reshape(-1)[start:stop]
            if served is not None and served.rows is None:
                stretch = corrected(stretch, value, served.elements(start, stop), self.strength)
            gradients.append(stretch)
        total = mean(gradients)
        assert not isinstance(total, IndexedSlices), "a mean of arrays"
        self.rule.dense(value, slots, total, self.step)

    def candidate(self) -> CandidateUpdate:
        """The value and slots that `run` would make, in every bit: all elements, or the rows that change."""
        value, slots, gradient = self.variable.value, self.variable.slots, self._gradient()
        if isinstance(gradient, IndexedSlices):
            rows = gradient.indices
            value, slots = value[rows], {name: slot[rows] for name, slot in slots.items()}
            gradient = IndexedSlices(gradient.values, np.arange(len(rows)), value.shape)
            self.rule.sparse(value, slots, gradient, self.step)
            return CandidateUpdate(self.variable, value, slots, rows)
        value, slots = value.copy(), {name: slot.copy() for name, slot in slots.items()}
        self.rule.dense(value, slots, gradient, self.step)
        return CandidateUpdate(self.variable, value, slots)

    def _gradient(self) -> Array | IndexedSlices:
        """The mean gradient; of rows, each once and in rising order."""
        gradients = []
        for gradient, served in self.contributions:
            array = gradient.array
            if not isinstance(array, np.ndarray):
                array = unpacked(array)
            if served is not None:
                array = compensated(array, self.variable.value, served, self.strength)
            gradients.append(array)
        total = gradients[0] if len(gradients) == 1 else mean(gradients)
        if isinstance(total, IndexedSlices):
            with np.errstate(all="ignore"):
                return total.summed()
        return total


@dataclass(slots=True, eq=False)
class CandidateUpdate:
    """An update that was computed on copies: the new value and slots, all elements or some `rows`."""

    variable: Variable
    value: Array
    slots: dict[str, Array]
    rows: Array | None = None

    @property
    def fault(self) -> str:
        """Which array has elements that are not finite, and how many; empty if none has."""
        for name, array in (("", self.value), *self.slots.items()):
            bad = not_finite(array)
            if bad:
                return f"{bad:,} of {array.size:,} elements" + (f" of its slot {name!r}" if name else "")
        return ""

    def commit(self) -> None:
        """Write it into the variable."""
        where = ... if self.rows is None else self.rows
        self.variable.value[where] = self.value
        for name, slot in self.slots.items():
            self.variable.slots[name][where] = slot


def mean(gradients: Sequence[Array | IndexedSlices]) -> Array | IndexedSlices:
    """Their sum over their number, in the order given; rows stay rows if all of them are. A single one is not copied.

    Sums of float16 arrays are float32, as rules compute.
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
