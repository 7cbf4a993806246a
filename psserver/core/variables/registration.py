"""Registration: checks of a declaration, alone and against the first one of its name; initial values and slots.

Changes nothing but the arrays of new variables. May import the rules, `pswire`'s pure half and numpy.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from psserver.core.variables.variable import Variable
from pswire.errors import AlreadyRegistered, InvalidMessage, UnknownVariable
from pswire.messages import Declaration, Tune
from pswire.optimizers import UpdateSpec, rule_for
from pswire.specs.initializers import check_fits, fill
from pswire.specs.spec import to_plain
from pswire.tensors.values import DTYPES, Array, Part, TensorSpec


def agreed_bytes(known: Variable, declaration: Declaration) -> int:
    """Raise if a later declaration contradicts the first; returns the bytes of slots that it would add."""
    spec, optimizer = declaration.spec, declaration.optimizer
    registered, declared = _whole_spec(known.spec, known.part), _whole_spec(spec, declaration.part)
    if registered != declared:
        raise AlreadyRegistered(
            f"variable {spec.name!r} is registered as {registered.dtype}{list(registered.shape)}, "
            f"this worker declares {declared.dtype}{list(declared.shape)}: do all workers run the same script?"
        )
    if (spec, declaration.part) != (known.spec, known.part):
        raise AlreadyRegistered(
            f"variable {spec.name!r} is registered here {_part_text(known.spec, known.part)}, this worker declares it "
            f"{_part_text(spec, declaration.part)}: do all workers name the same servers, in the same order?"
        )
    if declaration.value is not None and known.initial is not None:
        raise AlreadyRegistered(f"variable {spec.name!r} is registered as a table, this worker declares a plain one")
    if declaration.initial is not None and declaration.initial != known.initial:
        raise AlreadyRegistered(
            f"variable {spec.name!r} is registered with {known.initial or 'a value of its own'}, this worker declares "
            f"{declaration.initial}: do all workers run the same script?"
        )
    if optimizer is None:
        return 0
    if known.declared is None:
        return _slot_bytes(spec, optimizer)
    if to_plain(optimizer) not in [to_plain(one) for one in (known.declared, known.optimizer) if one is not None]:
        by_now = "" if known.optimizer == known.declared else f" (by now it is {known.optimizer})"
        raise AlreadyRegistered(
            f"variable {spec.name!r} is registered with {known.declared}{by_now}, this worker declares {optimizer}: "
            "a variable has one optimizer, the first that is declared; for another start the server anew, for other "
            "hyperparameters call session.set_hyperparameters, and for a learning rate that changes give a schedule"
        )
    return 0


def _whole_spec(spec: TensorSpec, part: Part | None) -> TensorSpec:
    """The spec of the variable that `spec` is a part of."""
    return spec if part is None or not spec.shape else TensorSpec(spec.name, (part.of, *spec.shape[1:]), spec.dtype)


def _part_text(spec: TensorSpec, part: Part | None) -> str:
    return "as a whole" if part is None else f"as its {spec.shape[0]} rows from {part.first} on, of {part.of}"


def declared_bytes(declaration: Declaration, dry_run: bool) -> int:
    """Raise if a first declaration is invalid; returns the bytes of value and slots. A `dry_run` needs no value."""
    spec, optimizer, part = declaration.spec, declaration.optimizer, declaration.part
    if declaration.value is None and declaration.initial is None and not dry_run:
        raise UnknownVariable(f"variable {spec.name!r} is not registered yet: send its initial value")
    if declaration.value is not None and declaration.initial is not None:
        raise InvalidMessage(f"variable {spec.name!r} is declared both with a value and as a table: choose one")
    if declaration.initial is not None:
        if not spec.shape or DTYPES[spec.dtype].kind != "f":
            raise InvalidMessage(f"table {spec} must have rows, of floating point")
        try:
            check_fits(declaration.initial, spec.dtype)
        except (TypeError, ValueError) as error:
            raise InvalidMessage(f"table {spec}: {error}") from None
    if part is not None and (not spec.shape or part.first + spec.shape[0] > part.of):
        raise InvalidMessage(f"variable {spec} does not fit into {part.of} rows from row {part.first} on")
    return spec.nbytes + (0 if optimizer is None else _slot_bytes(spec, optimizer))


def _slot_bytes(spec: TensorSpec, optimizer: UpdateSpec) -> int:
    return sum(slot.nbytes for slot in slot_specs(spec, optimizer).values())


def slot_specs(spec: TensorSpec, optimizer: UpdateSpec) -> dict[str, TensorSpec]:
    """The slots of the optimizer: of the variable's shape, with names and dtypes as its rule makes them."""
    try:
        slots = rule_for(optimizer).slots(np.empty(0, DTYPES[spec.dtype]))
    except InvalidMessage as error:
        raise InvalidMessage(f"variable {spec.name!r}: {error}") from None
    return {name: TensorSpec(spec.name, spec.shape, slot.dtype.name) for name, slot in slots.items()}


def initialize(value: Array, declaration: Declaration) -> None:
    """Write the initial value, which was sent or is computed here."""
    if declaration.initial is None:
        assert declaration.value is not None, "check_declarations was not called"
        np.copyto(value, declaration.value)
    else:
        fill(declaration.initial, value, 0 if declaration.part is None else declaration.part.first)


def tuned(variable: Variable, message: Tune) -> UpdateSpec:
    """The optimizer of a variable with the fields of the message changed; raises `TypeError` or `ValueError`."""
    assert variable.optimizer is not None, "check_tune was not called"
    unknown = set(message.fields) - {field.name for field in dataclasses.fields(message.optimizer)}
    if unknown:
        raise ValueError(f"{message.optimizer.kind} has no {', '.join(sorted(unknown))}")
    return dataclasses.replace(
        variable.optimizer, **{name: getattr(message.optimizer, name) for name in message.fields}
    )
