"""Array tasks: deferred array work of one shard step (updates, copies), and the result of a step.

The tasks of one variable must run one after the other, in the order in which they were made; those of different
variables may run at the same time, in any threads. A divisible task may be run in stretches of the variable's elements,
and several divisible tasks one stretch after the other, for no element depends on another. So every allowed order gives
the same bits as running each at once.

Tasks cannot fail. A change is ordinary when the magnitudes of the gradients and the growth of the variables show that
its result is finite (`pswire.optimizers.Rule`). Every other one is checked: computed in its step, on copies, from the
arrays as all earlier changes leave them, and committed only if every element of the result is finite.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from psserver.core.events import Event
from psserver.core.members.member import Member
from psserver.core.variables.aggregation import COST, robust
from psserver.core.variables.delay_compensation import ServedWeights, compensated, corrected
from psserver.core.variables.variable import Variable
from pswire.messages import Gradient, Job, JobReport, Reply
from pswire.optimizers import COMPUTE_DTYPES, Rule, Step
from pswire.optimizers.optimizer import check_result
from pswire.specs.consistency import Aggregate
from pswire.tensors.compression import Packed, narrow_to_16_bits, unpacked
from pswire.tensors.values import Array, IndexedSlices

#: A gradient of a push, the weights that it was computed with if it is to be compensated for its delay, and what it is
#: multiplied by.
Contribution: TypeAlias = tuple[Gradient, ServedWeights | None, float]


@dataclass(slots=True, eq=False)
class ArrayTask:
    """Work on the arrays of the variable of this name. Cannot fail.

    `nbytes`: the cost of `run`, as bytes of a gradient that an update rule would process in the same time. `part` does
    the work for the flat elements from start to stop, of `elements`; None and 0: the task is indivisible. `update`:
    the update that it makes, if it is one. `initial`: it makes the variable's first value or slots.
    """

    variable: str
    nbytes: int
    run: Callable[[], None]
    part: Callable[[int, int], None] | None = None
    elements: int = 0
    update: "Update | None" = None
    initial: bool = False


class TasksPending(Exception):
    """The step needs the results of all earlier tasks, and some have not run; nothing has changed."""


@dataclass(slots=True, eq=False)
class StepResult:
    """Replies, array tasks, events and effects of one step, each in order. Mutable while the step is under way.

    `settled`: all tasks of earlier steps have run, of the variables that this step may change under guard, so it may
    compute checked changes immediately. The arrays in the replies, of `bytes_out`, are complete when all tasks have
    run. `checked` are the updates that the step has made immediately. `now` is the time of the step.

    Effects are what the part that answers a message leaves to the shard: `changes` that were made now, which may belong
    to a cut; members that are `gone`; and `idle` ones, which wait for others, so that nobody may wait for their pushes.
    For a job that `begins` the shard makes all parts anew, which answer the message; `ended` is the report of the one
    before it then.
    """

    settled: bool = True
    now: float = 0.0
    replies: list[Reply] = field(default_factory=list)
    tasks: list[ArrayTask] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    bytes_out: int = 0
    checked: "list[Update]" = field(default_factory=list)
    changes: list[Any] = field(default_factory=list)
    gone: list[Member] = field(default_factory=list)
    idle: list[Member] = field(default_factory=list)
    begins: Job | None = None
    ended: JobReport | None = None
    began_cut: bool = False  # before anything else the step has taken the snapshot of a cut

    def reply(self, ticket: int, answer: Any) -> None:  # noqa: ANN401 - an answer or an error
        """Answer the call of this ticket."""
        self.replies.append(Reply(ticket, answer))


def run(tasks: Iterable[ArrayTask]) -> None:
    """Run tasks one after the other. If one fails, which is a bug, the others run before the first error is raised."""
    _run_all(map(_run_of, tasks))


def run_parts(tasks: Iterable[ArrayTask], stretches: Iterator[tuple[int, int]]) -> None:
    """Run divisible tasks of one variable on each remaining stretch (start, stop); errors as in `run`.

    Several threads may share one iterator of stretches, if its `next` is atomic.
    """
    parts = [task.part for task in tasks if task.part is not None]
    _run_all(partial(part, start, stop) for start, stop in stretches for part in parts)


#: Without a function of Python for each task.
_run_of = operator.attrgetter("run")


def _run_all(jobs: Iterable[Callable[[], None]]) -> None:
    faults: list[Exception] = []
    for job in jobs:
        try:
            job()
        except Exception as fault:  # noqa: BLE001 - raised below
            faults.append(fault)
    if faults:
        raise faults[0]


def stages(tasks: Iterable[ArrayTask]) -> list[list[ArrayTask]]:
    """The tasks of one variable in their order, with successive divisible ones together."""
    found: list[list[ArrayTask]] = []
    for task in tasks:
        if task.elements and found and found[-1][0].elements == task.elements:
            found[-1].append(task)
        else:
            found.append([task])
    return found


@dataclass(slots=True, eq=False)
class Update:
    """An update of `variable`, in place, by the `rule` it had when this was decided, at `step`.

    `contributions`, one per push, borrow their arrays; `strength` is that of the delay compensation. They become one
    gradient by the `aggregate`, over this number of `pushes`; None: by their mean.
    """

    variable: Variable
    rule: Rule
    contributions: Sequence[Contribution]
    strength: float
    step: Step
    aggregate: Aggregate | None = None
    pushes: int = 1

    def task(self) -> ArrayTask:
        """The array task of this update."""
        cost, divisible, variable = 0, self.rule.element_wise, self.variable
        for gradient, *_ in self.contributions:
            array = gradient.array
            if isinstance(array, Packed):
                cost += array.size * array.dtype.itemsize
            else:
                cost += array.nbytes
                divisible = divisible and isinstance(array, np.ndarray) and array.flags.c_contiguous
        if self.aggregate is not None:
            cost *= COST
        part, elements = (self.part, variable.value.size) if divisible else (None, 0)
        return ArrayTask(variable.spec.name, cost, self.run, part, elements, self)

    def run(self) -> None:
        """Change the value and the slots."""
        variable, gradient = self.variable, self._gradient()
        if isinstance(gradient, IndexedSlices):
            self.rule.sparse(variable.value, variable.slots, gradient, self.step)
        else:
            self._dense(variable.value, variable.slots, gradient)

    def _dense(self, value: Array, slots: dict[str, Array], gradient: Array) -> None:
        """Change these elements of the value, or of a copy, and the slots."""
        rounding = self.variable.rounding
        if not rounding.due or not self.step.learning_rate:
            self.rule.dense(value, slots, gradient, self.step)
            return
        sample = rounding.begin(value, gradient)
        self.rule.dense(value, slots, gradient, self.step)
        rounding.end(value, sample)

    def part(self, start: int, stop: int) -> None:
        """Change the elements from `start` to `stop`, to the same bits as `run`."""
        value = self.variable.value.reshape(-1)[start:stop]
        slots = {name: slot.reshape(-1)[start:stop] for name, slot in self.variable.slots.items()}
        gradients: list[Array | IndexedSlices] = []
        for gradient, served, factor in self.contributions:
            stretch = _elements(gradient.array, start, stop)
            if factor != 1.0:
                stretch = scaled(stretch, factor)
            if served is not None and served.rows is None:
                stretch = corrected(stretch, value - _elements(served.array, start, stop), self.strength)
            gradients.append(stretch)
        total = self._aggregated(gradients)
        assert not isinstance(total, IndexedSlices), "a mean of arrays"
        if start:  # the first stretch is enough for a sample
            self.rule.dense(value, slots, total, self.step)
        else:
            self._dense(value, slots, total)

    def candidate(self) -> tuple[Array | None, Array, dict[str, Array]]:
        """Rows, value and slots that `run` would produce, bit-identical; without rows all elements."""
        variable, gradient, rows = self.variable, self._gradient(), None
        if isinstance(gradient, IndexedSlices):
            rows = gradient.indices
            value, slots = variable.value[rows], {name: slot[rows] for name, slot in variable.slots.items()}
            self.rule.sparse(value, slots, IndexedSlices(gradient.values, np.arange(len(rows)), value.shape), self.step)
        else:
            value, slots = variable.value.copy(), {name: slot.copy() for name, slot in variable.slots.items()}
            self._dense(value, slots, gradient)
        return rows, value, slots

    def _aggregated(self, gradients: Sequence[Array | IndexedSlices]) -> Array | IndexedSlices:
        return mean(gradients) if self.aggregate is None else robust(gradients, self.aggregate, self.pushes)

    def _gradient(self) -> Array | IndexedSlices:
        """The gradient of all pushes; of rows, each once and in rising order."""
        if len(self.contributions) == self.pushes == 1:
            first, served, factor = self.contributions[0]
            if served is None and factor == 1.0 and isinstance(first.array, np.ndarray):
                return first.array
        gradients = []
        for gradient, served, factor in self.contributions:
            array = gradient.array
            if not isinstance(array, np.ndarray):
                array = unpacked(array)
            if factor != 1.0:
                values = array.values if isinstance(array, IndexedSlices) else array
                values = scaled(values, factor)
                array = array.with_values(values) if isinstance(array, IndexedSlices) else values
            if served is not None:
                array = compensated(array, self.variable.value, served, self.strength)
            gradients.append(array)
        total = self._aggregated(gradients)
        if isinstance(total, IndexedSlices):
            with np.errstate(all="ignore"):
                return total.summed()
        return total


def update_checked(updates: Sequence[Update]) -> None:
    """Do updates of different variables immediately, all or, raising `NotFinite`, none."""
    candidates = [update.candidate() for update in updates]
    for update, (_, value, slots) in zip(updates, candidates, strict=True):
        check_result(update.variable.spec.name, value, slots)
    for update, (rows, value, slots) in zip(updates, candidates, strict=True):
        variable, where = update.variable, ... if rows is None else rows
        variable.value[where] = value
        for name, slot in slots.items():
            variable.slots[name][where] = slot
        variable.check_growth(rows, value, slots)


def scaled(array: Array, factor: float) -> Array:
    """A new array, of the same dtype; computed in float64, as factors may be too small for others."""
    return np.asarray((array.astype(np.float64) * factor).astype(array.dtype))


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
    """Add `delta` to `value` without overflow warnings."""
    value += delta


@dataclass(slots=True, eq=False)
class Copy:
    """A copy of a value, a slot or rows into `out`, which has the `encoding` if there is one."""

    variable: Variable
    slot: str
    rows: Array | None
    encoding: str
    out: Array

    def run(self) -> None:
        """Copy all elements."""
        source = self.variable.slots[self.slot] if self.slot else self.variable.value
        if self.encoding:
            rows = source if self.rows is None else source.take(self.rows, axis=0, mode="clip")
            narrow_to_16_bits(rows.reshape(-1), self.out.reshape(-1), self.encoding)
        elif self.rows is None:
            np.copyto(self.out, source)
        else:  # rows were checked before; "raise", the default mode, would make another copy
            np.take(source, self.rows, axis=0, out=self.out, mode="clip")

    def part(self, start: int, stop: int) -> None:
        """Copy the elements from `start` to `stop`, if there are no rows."""
        source = self.variable.slots[self.slot] if self.slot else self.variable.value
        source, out = source.reshape(-1)[start:stop], self.out.reshape(-1)[start:stop]
        if self.encoding:
            narrow_to_16_bits(source, out, self.encoding)
        else:
            np.copyto(out, source)
