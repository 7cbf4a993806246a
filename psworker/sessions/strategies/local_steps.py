"""The strategy of local SGD: the optimizer runs in the worker, and the difference made by a round of steps is pushed.

May import the replica, and the update rules.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pswire import optimizers
from pswire.errors import ConfigurationError
from pswire.messages import Progress
from pswire.optimizers.optimizer import CHECKED_FROM, LIMITS, check_result
from pswire.specs.schedules import rate
from pswire.tensors.values import Array, IndexedSlices, magnitude
from psworker.client.push_pull import check_finite
from psworker.model.base_variable import BaseVariable, set_value
from psworker.model.tables import Table
from psworker.sessions.replica import Replica, Step
from psworker.sessions.variable_optimizers import Target, VariableOptimizers
from psworker.versions import VersionedArray

#: The default optimizer of the servers, as in DiLoCo, section 3.1 and table 5.
OUTER = optimizers.Momentum(0.7, 0.9, nesterov=True)


@dataclass(eq=False)
class LocalSteps(Replica):
    """Rounds of `steps` steps in the worker, each of which is one gradient for the servers.

        w_0 <- the servers' weights                          a round begins
        w_i <- inner optimizer(w_(i-1), g_i)                 its steps, i = 1 ... H, in this process
        push w_0 - w_H                                       to which the servers apply the outer optimizer

    The inner optimizers are the program's; their slots live on from round to round, their schedules go by the worker's
    steps. The outer optimizer is the same for all variables. The servers count rounds as steps and as staleness; the
    loss of a round is the mean of its steps'.

    A variable that keeps a moving average with decay d does so in the worker, and is pushed with decay D = d^H, as

        x = (w_H - D w_0) / (1 - D)

    so that one worker's round moves the servers' average from w_0 to w_H; with H observations x is a mean of them.

    Source: A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023
    (arXiv:2311.08105), algorithm 1; here each of several workers pushes its difference separately, and `psserver serve
    --consistency sync:N` averages them.
    """

    steps: int
    outer: optimizers.OptimizerSpec

    def __post_init__(self) -> None:
        super().__post_init__()
        self._inner = VariableOptimizers()
        self._local: dict[str, _LocalVariable] = {}
        self._outside: dict[str, Array] = {}  # variables that the program changes itself, and sets to the servers'
        self._local_step = 0  # of the inner optimizers
        self._begin_round()

    def _begin_round(self) -> None:
        self._count = 0
        self._losses: list[float] = []
        self._changed: dict[str, None] = {}  # variables, in the order of their first changes
        self._computed: dict[str, Progress] = {}  # by queue, with the last step

    def declare(self, optimizer: optimizers.UpdateSpec, names: Sequence[str]) -> None:
        """Declares the outer optimizer, or the average over a round, to the servers, and the program's one here."""
        outer: optimizers.UpdateSpec = self.outer
        if isinstance(optimizer, optimizers.MovingAverage):
            outer = optimizers.MovingAverage(optimizer.decay**self.steps)
        super().declare(outer, names)
        inner, spec = self._inner, self._inner.spec(optimizer)
        changed = inner.others_than(spec, names)
        inner.check_not_in_turn(changed, spec, self._local_step)
        new = [name for name in names if name in changed or name not in inner.declared]
        for name in new:
            value = self._local[name].value if name in changed else self._start(name)
            self._local[name] = _LocalVariable(value, spec)
        inner.add(new, spec, self._local_step)

    def step(self, step: Step) -> None:
        """One step of the inner optimizer; the last of a round pushes."""
        self._apply(step.entries)
        self._count_step([entry.name for entry in step.entries], step.loss)

    def step_outside(self, values: Mapping[str, Array], loss: float | None) -> None:
        """As `step`, of an optimizer that the program has applied itself, in the memory of `values`."""
        new = [name for name in values if name not in self._outside]
        if new:
            super().declare(self.outer, new)
        self._outside |= values
        self._count_step(values, loss)

    def _count_step(self, names: Iterable[str], loss: float | None) -> None:
        self._changed |= dict.fromkeys(names)
        if loss is not None:
            self._losses.append(loss)
        if self.loops:
            self._computed |= {one.queue: one for one in self.progress()}
        self._count += 1
        if self._count == self.steps:
            self.flush()

    def flush(self) -> None:
        """Pushes the round so far, and begins the next one with the servers' weights.

        If the push fails the round is discarded, since the servers may have applied it: a next round that continued
        from here would include its difference again. So the next round begins where this one began.
        """
        if self._count:
            self._push_round()
        self._give_back_left()

    def is_flushed(self) -> bool:
        """True if the round has no step yet."""
        return not self._count

    def _push_round(self) -> None:
        entries = []
        for name in self._changed:
            start, outer = self._start(name), self.optimizers.declared[name]
            end = self._outside[name] if name in self._outside else self._local[name].value
            if isinstance(outer, optimizers.MovingAverage):
                array = (end - outer.decay * start) / (1 - outer.decay)
            else:
                array = start - end
            entries.append(VersionedArray(name, self.values[name].read, np.asarray(array)))
        loss, names = (sum(self._losses) / len(self._losses) if self._losses else None), self.names
        progress = tuple(self._computed.values())
        self._take([self.values[name] for name in names])
        self._begin_round()
        self.push(entries, loss, names, progress)

    def register(self, variables: Sequence[BaseVariable]) -> None:
        """Registers variables; raises `ConfigurationError` for a table, whose rows are updated on the servers."""
        for variable in variables:
            if isinstance(variable, Table):
                raise ConfigurationError(
                    f"{variable.name!r} is a Table, which only the servers hold and update: leave out local_steps, or "
                    "make it a psworker.Variable"
                )
        super().register(variables)

    def tune(self, target: Target, changes: Mapping[str, Any]) -> None:
        """Changes the inner optimizer in this worker, or the outer one on the servers if that is the target."""
        self.flush()
        if isinstance(target, optimizers.UpdateSpec) and not self._inner.trained_with(target):
            super().tune(target, changes)
            return
        for names, spec in self._inner.changes(target, changes):
            self._inner.current |= dict.fromkeys(names, spec)
            for name in names:
                self._local[name].follow(spec)
                self._local[name].growth = math.inf  # slots may be far from those that the new hyperparameters make

    def learning_rate(self, name: str) -> float | None:
        """The present learning rate of the inner optimizer."""
        spec = self._inner.current.get(name)
        return rate(spec.learning_rate, self._local_step) if isinstance(spec, optimizers.OptimizerSpec) else None

    def slot(self, variable: BaseVariable, name: str) -> Array:
        """A slot of the inner optimizer, after a `flush`; a copy, read-only."""
        self.flush()
        self._inner.check_slot(variable.name, name)
        if variable.name not in self._inner.declared:
            raise ConfigurationError(
                f"{variable.name!r} has no slot {name!r}: slots are made by the first push for a variable, as its "
                "optimizer needs them"
            )
        slot = self._local[variable.name].slots[name].copy()
        slot.flags.writeable = False
        return slot

    def _apply(self, entries: Sequence[VersionedArray]) -> None:
        """Updates all of these variables, or none: if an update may overflow, all are computed on copies first."""
        variables = [self._local[entry.name] for entry in entries]
        checked = False
        for entry, variable in zip(entries, variables, strict=True):
            checked |= not variable.ordinary(entry)
        results = []
        for entry, variable in zip(entries, variables, strict=True):
            value, slots = variable.updated(entry.array, self._local_step, checked)
            if checked:
                check_result(entry.name, value, slots)
            results.append((value, slots))
        known = self.variables
        for entry, variable, (value, slots) in zip(entries, variables, results, strict=True):
            variable.keep(value, slots, checked)
            set_value(known[entry.name], value)
        self._local_step += 1

    def _start(self, name: str) -> Array:
        """The value that the servers have sent, with which the round began."""
        array = self.values[name].array
        assert not isinstance(array, IndexedSlices), "values have all rows"
        return array

    def _take(self, values: Sequence[VersionedArray]) -> None:
        super()._take(values)
        for value in values:
            if value.name in self._local:
                self._local[value.name].restart(self._start(value.name))


class _LocalVariable:
    """A variable in a round: its value, read-only, and its update rule with slots, which are changed in place.

    `growth` is that of ordinary updates since all elements were within the limits (`pswire.optimizers.optimizer`); from
    `CHECKED_FROM` on an update is computed on copies and checked.
    """

    def __init__(self, value: Array, spec: optimizers.UpdateSpec) -> None:
        self._limits = LIMITS.get(value.dtype.name)  # none for float16
        self.follow(spec)
        self.slots = self._rule.slots(value)
        self.growth = 0.0
        self._updates = 0
        self.value = np.empty(0)
        self.restart(value)

    def restart(self, value: Array) -> None:
        """Replaces the value by the servers'."""
        if value is not self.value and (self._limits is None or not magnitude(value) <= self._limits.state):
            self.growth = math.inf
        self.value = value

    def follow(self, spec: optimizers.UpdateSpec) -> None:
        """Sets the update rule."""
        self._spec, self._rule = spec, optimizers.rule_for(spec)
        self._share = optimizers.ordinary_growth(spec, self._limits)  # of one update

    def ordinary(self, entry: VersionedArray) -> bool:
        """True if an update is known not to overflow; raises `NotFinite` for a gradient with NaN or infinity."""
        array, limits = entry.array, self._limits
        if isinstance(array, IndexedSlices):
            array.check_indices()
            array = array.values
        largest = magnitude(array)
        if not math.isfinite(largest):
            check_finite(entry.name, array)
        return limits is not None and largest <= limits.gradient and self.growth + self._share < CHECKED_FROM

    def updated(
        self, gradient: Array | IndexedSlices, global_step: int, copies: bool
    ) -> tuple[Array, dict[str, Array]]:
        """The new value, and the slots, changed in place or as copies."""
        spec, value = self._spec, self.value.copy()
        slots = {name: slot.copy() for name, slot in self.slots.items()} if copies else self.slots
        learning_rate = rate(spec.learning_rate, global_step) if isinstance(spec, optimizers.OptimizerSpec) else 1.0
        step = optimizers.Step(self._updates + 1, global_step, learning_rate)
        if isinstance(gradient, IndexedSlices):
            self._rule.sparse(value, slots, gradient, step)
        else:
            self._rule.dense(value, slots, gradient, step)
        value.flags.writeable = False
        return value, slots

    def keep(self, value: Array, slots: dict[str, Array], checked: bool) -> None:
        """Takes the result of an update."""
        self.value, self.slots = value, slots
        self._updates += 1
        if not checked:
            self.growth += self._share
        elif self._limits is not None and math.isfinite(self._share):
            self.growth = 0.0 if self._rule.within_limits(value, slots, self._limits) else math.inf
