"""The variables of a shard: values, versions, optimizers and slots.

Checks come apart from changes, so that a message over several variables is whole or not at all: first every
`check_...` (which raises and changes nothing), then the change (which cannot fail). Knows nothing of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from psserver.core.rules import Rule, rule_for
from pswire.errors import (
    AlreadyRegistered,
    InvalidMessage,
    NoOptimizer,
    NotFinite,
    ShapeMismatch,
    TooLarge,
    UnknownVariable,
)
from pswire.messages import Assignment, Declaration, Gradient, Value
from pswire.schedules import rate
from pswire.specs import OptimizerSpec, UpdateSpec, to_plain
from pswire.values import DTYPES, Array, IndexedSlices, TensorSpec, not_finite


@dataclass(slots=True)
class Variable:
    """One variable. `version` counts every change, `updates` those of its optimizer."""

    spec: TensorSpec
    value: Array
    version: int = 0
    updates: int = 0
    optimizer: UpdateSpec | None = None
    rule: Rule | None = None
    slots: dict[str, Array] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the value and its slots."""
        return self.value.nbytes + sum(slot.nbytes for slot in self.slots.values())


class Store:
    """The variables by name. The arrays that it gives out are its own: borrowed until the next change."""

    def __init__(self, memory_limit: int | None = None) -> None:
        self._variables: dict[str, Variable] = {}
        self._memory_limit = memory_limit

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._variables.values())

    def __getitem__(self, name: str) -> Variable:
        variable = self._variables.get(name)
        if variable is None:
            raise UnknownVariable(
                f"no variable {name!r} among the {len(self._variables)} of this shard: register it first"
            )
        return variable

    @property
    def nbytes(self) -> int:
        """Bytes of all values and slots."""
        return sum(variable.nbytes for variable in self)

    def check_names(self, names: Iterable[str]) -> None:
        """Raises `UnknownVariable` unless there is a variable for each."""
        for name in names:
            self[name]

    def read(self, names: Iterable[str]) -> tuple[Value, ...]:
        """The values of `names`, in their order; views."""
        found = [self[name] for name in names]
        return tuple([Value(variable.spec.name, variable.version, variable.value) for variable in found])

    # --- registration ---------------------------------------------------------------------------------------------

    def check_declarations(self, declarations: Iterable[Declaration]) -> None:
        """Raises if one of them cannot be: see `declare`."""
        names: set[str] = set()
        wanted = 0
        for declaration in declarations:
            spec = declaration.spec
            if spec.name in names:
                raise InvalidMessage(f"variable {spec.name!r} is declared twice in one message")
            names.add(spec.name)
            known = self._variables.get(spec.name)
            if declaration.value is not None:
                check_tensor(spec, declaration.value, "initial value")
            if known is None:
                wanted += _declared_bytes(declaration)
            else:
                wanted += _agree(known, declaration)
        if self._memory_limit is not None and wanted and self.nbytes + wanted > self._memory_limit:
            raise TooLarge(
                f"variables {', '.join(sorted(names))} with their slots need {wanted:,} bytes more; this shard holds "
                f"{self.nbytes:,} and may hold {self._memory_limit:,}: use more shards, or raise --memory-limit"
            )

    def declare(self, declarations: Iterable[Declaration]) -> None:
        """Creates what is new, with a copy of its initial value, and gives variables their optimizers' slots.

        Call `check_declarations` first; after it this cannot fail.
        """
        for declaration in declarations:
            spec = declaration.spec
            variable = self._variables.get(spec.name)
            if variable is None:
                assert declaration.value is not None, "check_declarations was not called"
                value = np.array(declaration.value, dtype=DTYPES[spec.dtype], order="C", copy=True)
                variable = self._variables[spec.name] = Variable(spec, value)
            if declaration.optimizer is not None and variable.optimizer is None:
                variable.rule = rule_for(declaration.optimizer)
                variable.slots = variable.rule.slots(variable.value)
                variable.optimizer = declaration.optimizer

    # --- updates --------------------------------------------------------------------------------------------------

    def check_gradients(self, gradients: Iterable[Gradient]) -> None:
        """Checks names, optimizers, shapes, dtypes and versions."""
        names: set[str] = set()
        for gradient in gradients:
            variable = self[gradient.name]
            if gradient.name in names:
                raise InvalidMessage(f"two gradients for variable {gradient.name!r} in one push: add them up first")
            names.add(gradient.name)
            if variable.optimizer is None:
                raise NoOptimizer(f"variable {gradient.name!r} has no optimizer: register it with one before a push")
            check_tensor(variable.spec, gradient.array, variable.optimizer.pushed)
            if gradient.version > variable.version:
                raise InvalidMessage(
                    f"gradient for {gradient.name!r} at version {gradient.version}, but the variable is at "
                    f"{variable.version}: the server has lost state since; register again"
                )

    def check_elements(self, gradients: Iterable[Gradient]) -> None:
        """Raises `NotFinite` as `check_finite` does, and `InvalidMessage` for a row that its variable has not.

        Call `check_gradients` first.
        """
        for gradient in gradients:
            array, optimizer = gradient.array, self._variables[gradient.name].optimizer
            assert optimizer is not None, "check_gradients was not called"
            if isinstance(array, IndexedSlices):
                try:
                    array.check_indices()
                except ValueError as error:
                    raise InvalidMessage(f"{optimizer.pushed} for {gradient.name!r}: {error}") from None
                array = array.values
            check_finite(gradient.name, array, optimizer.pushed)

    def staleness(self, gradients: Iterable[Gradient]) -> int:
        """The most changes that a gradient has missed: those of its variable since its weights were served."""
        return max([self._variables[one.name].version - one.version for one in gradients], default=0)

    def apply(self, gradients: Iterable[Gradient], global_step: int) -> None:
        """One update by each variable's rule; gradients must have been checked, also for being finite.

        `global_step` counts the pushes before this one: learning rates are what they are at that step.
        """
        for gradient in gradients:
            variable = self._variables[gradient.name]
            rule, optimizer, array = variable.rule, variable.optimizer, gradient.array
            assert rule is not None, "check_gradients was not called"
            assert optimizer is not None, "a rule comes with its optimizer"
            variable.updates += 1
            variable.version += 1
            learning_rate = rate(optimizer.learning_rate, global_step) if isinstance(optimizer, OptimizerSpec) else 1.0
            if isinstance(array, IndexedSlices):
                with np.errstate(all="ignore"):
                    array = array.summed()
                rule.sparse(variable.value, variable.slots, array, variable.updates, learning_rate)
            else:
                rule.dense(variable.value, variable.slots, array, variable.updates, learning_rate)

    def check_assignments(self, assignments: Iterable[Assignment]) -> None:
        """Checks names, shapes and dtypes."""
        names: set[str] = set()
        for assignment in assignments:
            check_tensor(self[assignment.name].spec, assignment.array, "assigned value")
            if assignment.name in names:
                raise InvalidMessage(f"two values for variable {assignment.name!r} in one assign")
            names.add(assignment.name)

    def assign(self, assignments: Iterable[Assignment], *, add: bool) -> tuple[int, ...]:
        """Sets values, or adds to them; returns the new versions."""
        versions = []
        for assignment in assignments:
            variable = self._variables[assignment.name]
            if add:
                with np.errstate(all="ignore"):
                    variable.value += assignment.array
            else:
                variable.value[...] = assignment.array
            variable.version += 1
            versions.append(variable.version)
        return tuple(versions)


def check_tensor(spec: TensorSpec, array: Array | IndexedSlices, what: str) -> None:
    """Raises `ShapeMismatch` unless `array`, or the one that it has rows of, has the spec's shape and dtype."""
    if not spec.matches(array):
        raise ShapeMismatch(
            f"{what} for {spec.name!r} is {array.dtype.name}{list(array.shape)}, "
            f"the variable is {spec.dtype}{list(spec.shape)}"
        )


def check_finite(name: str, array: Array, what: str) -> None:
    """Raises `NotFinite` when a floating array has NaN or infinity."""
    bad = not_finite(array)
    if bad:
        raise NotFinite(
            f"{what} for {name!r} has {bad:,} of {array.size:,} elements that are NaN or infinite: nothing was changed"
            + ("; lower the learning rate, or clip gradients" if what == "gradient" else "")
        )


def _agree(known: Variable, declaration: Declaration) -> int:
    """Raises if a later declaration contradicts the first; returns the bytes of slots that it would add."""
    spec, optimizer = declaration.spec, declaration.optimizer
    if (spec.shape, spec.dtype) != (known.spec.shape, known.spec.dtype):
        raise AlreadyRegistered(
            f"variable {spec.name!r} is registered as {known.spec.dtype}{list(known.spec.shape)}, "
            f"this worker declares {spec.dtype}{list(spec.shape)}: do all workers run the same script?"
        )
    if optimizer is None or (known.optimizer is not None and to_plain(optimizer) == to_plain(known.optimizer)):
        return 0
    if known.optimizer is not None:
        raise AlreadyRegistered(
            f"variable {spec.name!r} is registered with {known.optimizer}, this worker declares {optimizer}: "
            "a variable has one optimizer, the first that is declared; for another start the server anew, and for a "
            "learning rate that changes give a schedule"
        )
    return _slot_bytes(spec, optimizer)


def _declared_bytes(declaration: Declaration) -> int:
    spec, optimizer = declaration.spec, declaration.optimizer
    if declaration.value is None:
        raise UnknownVariable(f"variable {spec.name!r} is not registered yet: send its initial value")
    return spec.nbytes + (0 if optimizer is None else _slot_bytes(spec, optimizer))


def _slot_bytes(spec: TensorSpec, optimizer: UpdateSpec) -> int:
    """Slots have the variable's shape; their number and dtypes show on an empty array."""
    try:
        slots = rule_for(optimizer).slots(np.empty(0, DTYPES[spec.dtype]))
    except InvalidMessage as error:
        raise InvalidMessage(f"variable {spec.name!r}: {error}") from None
    return spec.size * sum(slot.itemsize for slot in slots.values())
