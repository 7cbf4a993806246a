"""Updates of variables: the variable's rule applied to the mean gradient of one or more pushes; guarded updates.

Array tasks cannot fail, so a change whose result may be NaN or infinite must be computed before it becomes a task. A
change is ordinary when the magnitudes of the gradients and the growth of the variables show that its result is finite
(`pswire.optimizers.Rule`), without a look at an element. Every other one is guarded: computed in its step, on copies,
from the arrays as all earlier changes leave them, and committed only if every element of the result is finite.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from psserver.core.array_tasks import ArrayTask
from psserver.core.variables.delay_compensation import ServedWeights, compensated, corrected
from psserver.core.variables.variable import Variable
from pswire.messages import Gradient
from pswire.optimizers import COMPUTE_DTYPES, Rule, Step
from pswire.optimizers.optimizer import fault_of, refused
from pswire.tensors.compression import Packed, unpacked
from pswire.tensors.values import Array, IndexedSlices

#: A gradient of a push, and the weights that it was computed with if it is to be compensated for its delay.
Contribution: TypeAlias = tuple[Gradient, ServedWeights | None]


@dataclass(slots=True, eq=False)
class Update:
    """An update of `variable`, in place, by the `rule` it had when this was decided, at `step`.

    `contributions`, one per push, borrow their arrays; `strength` is that of the delay compensation.
    """

    variable: Variable
    rule: Rule
    contributions: Sequence[Contribution]
    strength: float
    step: Step

    def task(self) -> ArrayTask:
        """The array task of this update."""
        cost, divisible, variable = 0, self.rule.element_wise, self.variable
        for gradient, _ in self.contributions:
            array = gradient.array
            if isinstance(array, Packed):
                cost += array.size * array.dtype.itemsize
            else:
                cost += array.nbytes
                divisible = divisible and isinstance(array, np.ndarray) and array.flags.c_contiguous
        parts = (self.part, variable.value.size) if divisible else ()
        return ArrayTask(variable.spec.name, cost, self.run, *parts)

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
            stretch = _elements(gradient.array, start, stop)
            if served is not None and served.rows is None:
                stretch = corrected(stretch, value - _elements(served.array, start, stop), self.strength)
            gradients.append(stretch)
        total = mean(gradients)
        assert not isinstance(total, IndexedSlices), "a mean of arrays"
        self.rule.dense(value, slots, total, self.step)

    def candidate(self) -> tuple[Array | None, Array, dict[str, Array]]:
        """Rows, value and slots that `run` would produce, bit-identical; without rows all elements."""
        variable, gradient, rows = self.variable, self._gradient(), None
        if isinstance(gradient, IndexedSlices):
            rows = gradient.indices
            value, slots = variable.value[rows], {name: slot[rows] for name, slot in variable.slots.items()}
            self.rule.sparse(value, slots, IndexedSlices(gradient.values, np.arange(len(rows)), value.shape), self.step)
        else:
            value, slots = variable.value.copy(), {name: slot.copy() for name, slot in variable.slots.items()}
            self.rule.dense(value, slots, gradient, self.step)
        return rows, value, slots

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


def update_guarded(updates: Sequence[Update]) -> None:
    """Do updates of different variables immediately, all or, raising `NotFinite`, none."""
    candidates = [update.candidate() for update in updates]
    for update, (_, value, slots) in zip(updates, candidates, strict=True):
        if fault := fault_of(value, slots):
            raise refused(update.variable.spec.name, fault)
    for update, (rows, value, slots) in zip(updates, candidates, strict=True):
        variable, where = update.variable, ... if rows is None else rows
        variable.value[where] = value
        for name, slot in slots.items():
            variable.slots[name][where] = slot
        variable.check_growth(rows, value, slots)


def mean(gradients: Sequence[Array | IndexedSlices]) -> Array | IndexedSlices:
    """The mean, summed in the given order, of float16 arrays in float32; rows if all are rows. One is not copied."""
    first = gradients[0]
    if len(gradients) == 1:
        return first
    with np.errstate(all="ignore"):
        if all(isinstance(one, IndexedSlices) for one in gradients):
            return functools.reduce(operator.add, gradients) / len(gradients)
        total = np.zeros(first.shape, COMPUTE_DTYPES[first.dtype])
        for one in gradients:
            total = one + total if isinstance(one, IndexedSlices) else np.add(total, one, out=total)
        total /= len(gradients)
        return total


def _elements(array: Array | IndexedSlices | Packed, start: int, stop: int) -> Array:
    if isinstance(array, Packed):
        return array.elements(start, stop)
    assert isinstance(array, np.ndarray), "rows are not divisible"
    return array.reshape(-1)[start:stop]


@np.errstate(all="ignore")
def add_to(value: Array, delta: Array) -> None:
    """Value += delta, without overflow warnings."""
    value += delta
