"""The optimizers of a worker's variables: which one each has, changed hyperparameters, and another optimizer later."""

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from pswire.errors import ConfigurationError
from pswire.optimizers import UpdateSpec
from pswire.specs.spec import from_plain, to_plain
from psworker.model.base_variable import BaseVariable

logger = logging.getLogger(__name__)

#: Successive changes of a variable's optimizer, each after one step, that are an error.
CHANGES_IN_TURN = 2

#: The optimizer, or the variables, whose hyperparameters change.
Target: TypeAlias = UpdateSpec | BaseVariable | Iterable[BaseVariable]


class VariableOptimizers:
    """The optimizer of each variable that this worker has trained, as it was `declared` and as it is at present.

    `specs` has, by a program's optimizer, its hyperparameters as they come back from a server; `replaced` counts by
    variable how often it got another optimizer.
    """

    def __init__(self) -> None:
        self.replaced: dict[str, int] = {}
        self._in_turn: dict[str, tuple[int, int]] = {}  # the step of the last change, and those after one step in a row
        self.specs: dict[UpdateSpec, UpdateSpec] = {}
        self.declared: dict[str, UpdateSpec] = {}
        self.current: dict[str, UpdateSpec] = {}

    def spec(self, optimizer: UpdateSpec) -> UpdateSpec:
        """The hyperparameters of a program's optimizer."""
        if optimizer not in self.specs:
            spec = from_plain(UpdateSpec, to_plain(optimizer))
            self.specs[optimizer] = self.specs.setdefault(spec, spec)
        return self.specs[optimizer]

    def add(self, names: Sequence[str], spec: UpdateSpec, step: int) -> None:
        """Notes that variables were declared, at this step of the worker; logs it if they had another optimizer."""
        changed = self.others_than(spec, names)
        for name in changed:
            self.replaced[name] = self.replaced.get(name, 0) + 1
            self._in_turn[name] = step, self._count_in_turn(name, step)
        if changed:
            earlier = " and ".join(dict.fromkeys([str(self.declared[name]) for name in changed]))
            logger.warning("%s: from now on %s in place of %s, with new slots", ", ".join(changed), spec, earlier)
        self.declared |= dict.fromkeys(names, spec)
        self.current |= dict.fromkeys(names, spec)

    def others_than(self, spec: UpdateSpec, names: Iterable[str]) -> list[str]:
        """Those of the variables that have another optimizer, as it was declared and as it was changed to."""
        of = self.declared
        return [name for name in names if name in of and spec not in (of[name], self.current[name])]

    def check_not_in_turn(self, names: Iterable[str], spec: UpdateSpec, step: int) -> None:
        """Raises `ConfigurationError` if two optimizers train a variable in turn, with new slots at each step."""
        for name in names:
            if self._count_in_turn(name, step) == CHANGES_IN_TURN:
                raise ConfigurationError(
                    f"variable {name!r} gets another optimizer at each step, {self.declared[name]} and {spec}: each "
                    "change begins with new slots. Give each optimizer variables of its own (var_list), or minimize "
                    "the sum of the losses with one"
                )

    def _count_in_turn(self, name: str, step: int) -> int:
        """Successive changes that came one step after another, with one at this step; the first is 0."""
        last, count = self._in_turn.get(name, (-1, 0))
        return count + 1 if step - last == 1 else 0

    def trained_with(self, optimizer: UpdateSpec) -> list[str]:
        """The variables that have this optimizer, as it was declared or as it was changed to."""
        spec = self.spec(optimizer)
        return [name for name in self.declared if spec in (self.declared[name], self.current[name])]

    def changes(self, target: Target, fields: Mapping[str, Any]) -> list[tuple[list[str], UpdateSpec]]:
        """Groups of variables, each with its optimizer after these changes; raises as `Session.set_hyperparameters`."""
        groups: dict[UpdateSpec, list[str]] = {}
        for name in self._targets(target):
            groups.setdefault(self.current[name], []).append(name)
        return [(names, _changed(spec, fields, names)) for spec, names in groups.items()]

    def check_slot(self, variable: str, slot: str) -> None:
        """Raises `ConfigurationError` if the variable's optimizer is known and has no such slot."""
        spec = self.declared.get(variable)
        if spec is not None and slot not in spec.slot_names():
            raise ConfigurationError(
                f"{variable!r} has no slot {slot!r}: its optimizer, {type(spec).__name__}, keeps "
                f"{', '.join(spec.slot_names()) or 'none'}"
            )

    def _targets(self, target: Target) -> list[str]:
        if isinstance(target, UpdateSpec):
            names = self.trained_with(target)
            if not names:
                raise ConfigurationError(f"no variable was trained with {target} in this session yet: name variables")
            return names
        variables = [target] if isinstance(target, BaseVariable) or not isinstance(target, Iterable) else list(target)
        for variable in variables:
            if not isinstance(variable, BaseVariable):
                raise TypeError(
                    f"session.set_hyperparameters takes an optimizer, such as that of one parameter group, or "
                    f"variables, got {variable!r}"
                )
        names = [variable.name for variable in variables]
        without = [name for name in names if name not in self.declared]
        if without or not names:
            raise ConfigurationError(
                f"{', '.join(without) or 'no variable'}: an optimizer's hyperparameters are changed for variables that "
                "this worker has trained in this session"
            )
        return names


def _changed(spec: UpdateSpec, changes: Mapping[str, Any], names: Sequence[str]) -> UpdateSpec:
    kind, of = type(spec).__name__, ", ".join(names)
    fields = [field.name for field in dataclasses.fields(spec)]
    unknown = [name for name in changes if name not in fields]
    if unknown or not changes:
        problem = f"has no hyperparameter {', '.join(unknown)}" if unknown else "was given nothing to change"
        raise ConfigurationError(f"{kind}, the optimizer of {of}, {problem}: choose from {', '.join(fields)}")
    changed = dataclasses.replace(spec, **changes)
    if changed.slot_names() != spec.slot_names():
        raise ConfigurationError(
            f"{kind}, the optimizer of {of}, keeps the slots {', '.join(spec.slot_names()) or 'none'} and with "
            f"{', '.join(f'{name}={value!r}' for name, value in changes.items())} would keep "
            f"{', '.join(changed.slot_names()) or 'none'}: slots are created once; start a new job for this change"
        )
    return changed
