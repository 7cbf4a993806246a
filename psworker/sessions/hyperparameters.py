"""The optimizers that a worker has given to variables, and changes of their hyperparameters. Pure bookkeeping.

May import the variables and the optimizers' hyperparameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from pswire.errors import ConfigurationError
from pswire.optimizers import UpdateSpec
from pswire.specs.spec import from_plain, to_plain
from psworker.model.variables import BaseVariable

#: The optimizer, or the variables, whose hyperparameters change.
Target: TypeAlias = UpdateSpec | BaseVariable | Iterable[BaseVariable]


class VariableOptimizers:
    """The optimizer of each variable that this worker has trained.

    Attributes:
        specs: by a program's optimizer, its hyperparameters as they come back from a server.
        declared, current: by variable, the optimizer that it was declared with, and its present one.
    """

    def __init__(self) -> None:
        self.specs: dict[UpdateSpec, UpdateSpec] = {}
        self.declared: dict[str, UpdateSpec] = {}
        self.current: dict[str, UpdateSpec] = {}

    def spec(self, optimizer: UpdateSpec) -> UpdateSpec:
        """The hyperparameters of a program's optimizer."""
        if optimizer not in self.specs:
            spec = from_plain(UpdateSpec, to_plain(optimizer))
            self.specs[optimizer] = self.specs.setdefault(spec, spec)
        return self.specs[optimizer]

    def add(self, names: Iterable[str], spec: UpdateSpec) -> None:
        """Notes that variables were declared."""
        self.declared |= dict.fromkeys(names, spec)
        self.current |= dict.fromkeys(names, spec)

    def trained_with(self, optimizer: UpdateSpec) -> list[str]:
        """The variables that have this optimizer, as it was declared or as it was changed to."""
        spec = self.spec(optimizer)
        return [name for name in self.declared if spec in (self.declared[name], self.current[name])]

    def changes(self, target: Target, fields: Mapping[str, Any]) -> list[tuple[list[str], UpdateSpec]]:
        """Groups of variables, each with its optimizer after these changes of its fields, all checked.

        Raises:
            ConfigurationError: there is no such field or variable, or slots would have to change.
            ValueError, TypeError: an invalid value of a field, or a target of the wrong type.
        """
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
                raise TypeError(f"session.set_hyperparameters takes an optimizer or variables, got {variable!r}")
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
