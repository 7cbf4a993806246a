"""Updates of variables: the variable's rule applied to the mean gradient of one or more pushes; guarded updates.

Array tasks cannot fail and run after their step (`psserver.core.array_tasks`), so a change whose result may be NaN or
infinite must be computed before it becomes a task. A change is ordinary when the magnitudes of the gradients and the
growth of the variables show that its result is finite (`pswire.optimizers.Rule`), without a look at an element. Every
other one is guarded: computed at once, on copies, from the arrays as all earlier changes leave them, and committed only
if every element of the result is finite. Knows no workers. May import `pswire`'s pure half and numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from psserver.core.array_tasks import ArrayTask
from psserver.core.variables.delay_compensation import ServedWeights, compensated, corrected
from psserver.core.variables.element_checks import Magnitudes, check_finite
from psserver.core.variables.variable import Variable
from pswire.messages import Assignment, Gradient
from pswire.optimizers import COMPUTE_DTYPES, Rule, Step
from pswire.optimizers.optimizer import GUARDED, fault_of, refused
from pswire.tensors.compression import Packed, unpacked
from pswire.tensors.values import Array, IndexedSlices

#: A gradient of a push, and the weights that it was computed with if it is to be compensated for its delay.
Contribution: TypeAlias = tuple[Gradient, ServedWeights | None]

#: An upper bound of the growth of a variable to which an ordinary array is added.
ADDITION_GROWTH = 1e-20

#: The number of updates of a guarded table between two checks of the whole table instead of the changed rows only.
UPDATES_BETWEEN_FULL_CHECKS = 1000


@dataclass(slots=True, eq=False)
class Update:
    """An update of `variable`, in place, by the `rule` it had when this was decided, at `step`; `run` does it.

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
                stretch = corrected(stretch, value, _elements(served.array, start, stop), self.strength)
            gradients.append(stretch)
        total = mean(gradients)
        assert not isinstance(total, IndexedSlices), "a mean of arrays"
        self.rule.dense(value, slots, total, self.step)

    def candidate(self) -> CandidateUpdate:
        """The value and slots that `run` would produce, bit-identical: all elements, or the rows that change."""
        variable, gradient, rows = self.variable, self._gradient(), None
        if isinstance(gradient, IndexedSlices):
            rows = gradient.indices
            value, slots = variable.value[rows], {name: slot[rows] for name, slot in variable.slots.items()}
            self.rule.sparse(value, slots, IndexedSlices(gradient.values, np.arange(len(rows)), value.shape), self.step)
        else:
            value, slots = variable.value.copy(), {name: slot.copy() for name, slot in variable.slots.items()}
            self.rule.dense(value, slots, gradient, self.step)
        return CandidateUpdate(variable, value, slots, rows)

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
    rows: Array | None

    @property
    def fault(self) -> str:
        """The number of elements that are not finite, and their array; empty if there are none."""
        return fault_of(self.value, self.slots)

    def commit(self) -> None:
        """Write it into the variable."""
        where = ... if self.rows is None else self.rows
        self.variable.value[where] = self.value
        for name, slot in self.slots.items():
            self.variable.slots[name][where] = slot


def mean(gradients: Sequence[Array | IndexedSlices]) -> Array | IndexedSlices:
    """The mean, summed in the given order; rows if all of them are rows. A single one is not copied.

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


class OverflowGuard:
    """Tells which changes of the shard's `variables`, by name, are guarded, and carries those out."""

    def __init__(self, variables: Mapping[str, Variable]) -> None:
        self._variables = variables
        self._guarded: set[str] = set()

    def __bool__(self) -> bool:
        """Whether any variable is guarded."""
        return bool(self._guarded)

    def needed(self, magnitudes: Magnitudes) -> bool:
        """Whether a change of these variables together, by arrays of these magnitudes, is guarded."""
        if not self._guarded.isdisjoint(magnitudes):
            return True
        for name, magnitude in magnitudes.items():
            limits = self._variables[name].limits
            if limits is not None and not magnitude <= limits.gradient / 2:
                return True  # the other half is for the delay compensation
        return False

    def grown(self, variable: Variable, growth: float) -> None:
        """Note the growth by an ordinary change."""
        variable.growth += growth
        if variable.growth >= GUARDED:
            self._guarded.add(variable.spec.name)

    def replaced(self, variable: Variable, magnitude: float) -> None:
        """Note a new value, with elements of this magnitude."""
        if variable.value.dtype.kind == "f" and (variable.limits is None or not magnitude <= variable.limits.state):
            self.grown(variable, math.inf)

    def update(self, updates: Iterable[Update]) -> None:
        """Do updates of different variables, all or, raising `NotFinite`, none."""
        candidates = [update.candidate() for update in updates]
        for candidate in candidates:
            if fault := candidate.fault:
                raise refused(candidate.variable.spec.name, fault)
        for candidate in candidates:
            candidate.commit()
            self._check_again(candidate)

    def sums(self, assignments: Iterable[Assignment]) -> tuple[list[Assignment], Magnitudes]:
        """The values after adding these, and their magnitudes; raises `NotFinite` if one is not finite."""
        sums, magnitudes = [], {}
        for one in assignments:
            total = self._variables[one.name].value.copy()
            add_to(total, one.array)
            magnitudes[one.name] = check_finite(one.name, total, "sum of the value and what is added")
            sums.append(Assignment(one.name, total))
        return sums, magnitudes

    def _check_again(self, candidate: CandidateUpdate) -> None:
        """Check whether the next updates of the variable must be guarded as well."""
        variable = candidate.variable
        rule, limits = variable.rule, variable.limits
        if rule is None or limits is None or not math.isfinite(variable.share):
            return
        if not rule.settled(candidate.value, candidate.slots, limits):
            self.grown(variable, math.inf)
        elif candidate.rows is not None and variable.growth < GUARDED:
            self.grown(variable, variable.share)
        elif candidate.rows is None or (
            variable.updates % UPDATES_BETWEEN_FULL_CHECKS == 0 and rule.settled(variable.value, variable.slots, limits)
        ):
            variable.growth = 0.0
            self._guarded.discard(variable.spec.name)


def _elements(array: Array | IndexedSlices | Packed, start: int, stop: int) -> Array:
    if isinstance(array, Packed):
        return array.elements(start, stop)
    assert isinstance(array, np.ndarray), "rows are not divisible"
    return array.reshape(-1)[start:stop]


@np.errstate(all="ignore")
def add_to(value: Array, delta: Array) -> None:
    """Value += delta, without overflow warnings."""
    value += delta
