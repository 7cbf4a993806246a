"""Guarded changes: computed at once, on copies, and kept if every element of the result is finite.

Tasks cannot fail and run after their step (`psserver.core.array_tasks`), so a change whose result may be NaN or
infinite must
be known before it becomes a task. A change is ordinary when the magnitudes of gradients and the growth of the variables
show that it cannot (`pswire.optimizers.limits`); it costs no look at an element. Every other one is guarded, for
which arrays must be as all earlier changes have made them. May import variables, updates, the rules and numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np

from psserver.core.variables.element_checks import check_finite
from psserver.core.variables.updates import Trial, Update
from psserver.core.variables.variable import Variable
from pswire.errors import NotFinite
from pswire.messages import Assignment
from pswire.optimizers.limits import GUARDED
from pswire.tensors.values import Array

#: Of arrays that were looked at, by the name of their variable: no element is further from 0.
Magnitudes: TypeAlias = Mapping[str, float]

#: More than the growth of a variable to which an ordinary array is added.
AN_ADDITION = 1e-20

#: Updates of a guarded table until all of it is looked at once more, and not only the rows that have changed.
LOOKED_AT = 1000


class Guards:
    """Which variables are guarded.

    Args:
        variables: those of the shard, by name.

    Attributes:
        settled: whether all tasks that were given out before the step that is being taken have been run. Else nothing
            is guarded in this step: who takes it has asked `needed` before.
    """

    def __init__(self, variables: Mapping[str, Variable]) -> None:
        self._variables = variables
        self._guarded: set[str] = set()
        self.settled = True

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
                return True  # the other half is for what compensation for delay may add
        return False

    def grown(self, variable: Variable, growth: float) -> None:
        """An ordinary change was decided on."""
        variable.growth += growth
        if variable.growth >= GUARDED:
            self._guarded.add(variable.spec.name)

    def replaced(self, variable: Variable, magnitude: float) -> None:
        """The value is another now, with elements of this magnitude."""
        if variable.value.dtype.kind == "f" and (variable.limits is None or not magnitude <= variable.limits.state):
            self.grown(variable, math.inf)

    def update(self, updates: Mapping[str, Update]) -> None:
        """Does all of these updates, by variable; raises `NotFinite` if it can do one of them only with NaN."""
        trials = {name: update.trial() for name, update in updates.items()}
        for name, trial in trials.items():
            fault = trial.fault
            if fault:
                raise NotFinite(
                    f"the update of {name!r} would make NaN or infinity of {fault}: nothing was changed; lower the "
                    "learning rate, or clip gradients"
                )
        for name, trial in trials.items():
            trial.keep()
            self._look_again(self._variables[name], trial)

    def sums(self, assignments: Iterable[Assignment]) -> list[Assignment]:
        """The values that adding these would make; raises `NotFinite` if one of them is not finite."""
        sums = []
        for one in assignments:
            total = self._variables[one.name].value.copy()
            add_to(total, one.array)
            check_finite(one.name, total, "sum of the value and what is added")
            sums.append(Assignment(one.name, total))
        return sums

    def _look_again(self, variable: Variable, trial: Trial) -> None:
        """Finds out whether the next updates are guarded as well."""
        rule, limits = variable.rule, variable.limits
        if rule is None or limits is None or not math.isfinite(variable.share):
            return
        if not rule.settled(trial.value, trial.slots, limits):
            self.grown(variable, math.inf)
        elif trial.rows is None:
            self._small_again(variable)
        elif not variable.guarded:
            self.grown(variable, variable.share)
        elif variable.updates % LOOKED_AT == 0 and rule.settled(variable.value, variable.slots, limits):
            self._small_again(variable)

    def _small_again(self, variable: Variable) -> None:
        variable.growth = 0.0
        self._guarded.discard(variable.spec.name)


@np.errstate(all="ignore")
def add_to(value: Array, delta: Array) -> None:
    """Value += delta, silently."""
    value += delta
