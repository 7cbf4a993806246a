"""Guarded updates: computed at once, on copies, and committed only if every element of the result is finite.

Array tasks cannot fail and run after their step (`psserver.core.array_tasks`), so a change whose result may be NaN or
infinite must be computed before it becomes a task. A change is ordinary when the magnitudes of the gradients and the
growth of the variables show that its result is finite (`pswire.optimizers.limits`), without a look at an element.
Every other one is guarded, and needs the arrays as all earlier changes leave them. May import variables, updates, the
rules and numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from psserver.core.variables.element_checks import Magnitudes, check_finite
from psserver.core.variables.updates import CandidateUpdate, Update
from psserver.core.variables.variable import Variable
from pswire.errors import NotFinite
from pswire.messages import Assignment
from pswire.optimizers.limits import GUARDED
from pswire.tensors.values import Array

#: More than the growth of a variable to which an ordinary array is added.
AN_ADDITION = 1e-20

#: Updates of a guarded table between two checks of all of it, and not only of the rows that have changed.
FULL_CHECK = 1000


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
            fault, name = candidate.fault, candidate.variable.spec.name
            if fault:
                raise NotFinite(
                    f"the update of {name!r} would make NaN or infinity of {fault}: nothing was changed; lower the "
                    "learning rate, or clip gradients"
                )
        for candidate in candidates:
            candidate.commit()
            self._check_again(candidate)

    def sums(self, assignments: Iterable[Assignment]) -> list[Assignment]:
        """The values after adding these; raises `NotFinite` if one of them is not finite."""
        sums = []
        for one in assignments:
            total = self._variables[one.name].value.copy()
            add_to(total, one.array)
            check_finite(one.name, total, "sum of the value and what is added")
            sums.append(Assignment(one.name, total))
        return sums

    def _check_again(self, candidate: CandidateUpdate) -> None:
        """Find out whether the next updates of the variable are guarded as well."""
        variable = candidate.variable
        rule, limits = variable.rule, variable.limits
        if rule is None or limits is None or not math.isfinite(variable.share):
            return
        if not rule.settled(candidate.value, candidate.slots, limits):
            self.grown(variable, math.inf)
        elif candidate.rows is None:
            self._release(variable)
        elif not variable.guarded:
            self.grown(variable, variable.share)
        elif variable.updates % FULL_CHECK == 0 and rule.settled(variable.value, variable.slots, limits):
            self._release(variable)

    def _release(self, variable: Variable) -> None:
        variable.growth = 0.0
        self._guarded.discard(variable.spec.name)


@np.errstate(all="ignore")
def add_to(value: Array, delta: Array) -> None:
    """Value += delta, silently."""
    value += delta
