"""A variable on a shard: value, slots and counts, changed only by the store; and its registration.

The first registration of a variable wins; later ones must agree with it. Its optimizer is that of the worker whose
program is at the latest stage.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from psserver.core.variable_arrays import VariableArrays
from psserver.core.variables.rounding import RoundingSample
from pswire.errors import AlreadyRegistered, InvalidMessage, UnknownVariable
from pswire.messages import Choice, Declaration, Tune, VariableState, VariableStatus
from pswire.optimizers import OptimizerSpec, Rule, UpdateSpec, ordinary_growth, rule_for
from pswire.optimizers.optimizer import CHECKED_FROM, LIMITS, Limits
from pswire.specs.initializers import RowInitializer, check_fits, fill_elements
from pswire.specs.schedules import Schedule
from pswire.specs.spec import to_plain
from pswire.tensors.values import DTYPES, Array, Part, TensorSpec, whole_spec

#: What the name of a vector follows among the slots in a checkpoint; no optimizer has such a slot.
VECTOR = "vector/"

#: The number of updates of a checked table between two checks of the whole table instead of the changed rows only.
UPDATES_BETWEEN_FULL_CHECKS = 1000


class CopyBeforeChange(Protocol):
    """A copy of a variable as it is at a moment, which has to be made before a later change."""

    def start(self, result: Any) -> None:  # noqa: ANN401 - a StepResult, whose module imports this one
        """Add the task that makes it."""


@dataclass(slots=True)
class Variable:
    """One variable, or the part of it on this shard."""

    spec: TensorSpec
    value: Array
    initial: RowInitializer | None = None  # of the rows of a table; None: a plain variable
    part: Part | None = None
    version: int = 0  # count of all changes
    updates: int = 0  # count of those by its optimizer
    declared: UpdateSpec | None = None  # the optimizer that the workers gave it last, and the stage of their program
    stage: int = 0
    optimizer: UpdateSpec | None = None  # with the hyperparameters that hold now
    rule: Rule | None = None
    slot_specs: dict[str, TensorSpec] = field(default_factory=dict)
    slots: dict[str, Array] = field(default_factory=dict)
    vectors: dict[str, Array] = field(default_factory=dict)  # of its shape, of batch optimization (`ms.Compute`)
    schedule: Schedule | None = None
    learning_rate: float = 1.0  # if there is no schedule; 1 for a rule without a learning rate
    limits: Limits | None = None  # magnitudes of an ordinary update; None: no update is ordinary
    share: float = 0.0  # the growth of one ordinary update
    growth: float = 0.0  # their sum since all elements were within the limits; infinite while they are not
    copy: "CopyBeforeChange | None" = None  # to be made before the next change
    bytes_in: int = 0  # of the gradients of its updates, and of what was served of it, since the server has started
    bytes_out: int = 0
    rounding: RoundingSample = field(default_factory=RoundingSample)

    def __post_init__(self) -> None:
        self.limits = LIMITS.get(self.spec.dtype)

    def state(self) -> VariableState:
        """All but its arrays."""
        return VariableState(
            spec=self.spec,
            version=self.version,
            updates=self.updates,
            growth=self.growth,
            declared=self.declared,
            optimizer=self.optimizer,
            initial=self.initial,
            part=self.part,
            vectors=tuple(self.vectors),
            stage=self.stage,
        )

    @property
    def arrays(self) -> VariableArrays:
        """Its arrays, which stay its own; vectors are among the slots, under longer names."""
        vectors = {VECTOR + name: vector for name, vector in self.vectors.items()}
        return VariableArrays(self.value, self.slots | vectors if vectors else self.slots)

    @classmethod
    def restored(cls, state: VariableState, arrays: VariableArrays) -> "Variable":
        """A variable that continues from a `state`, and owns the arrays. Raises `ValueError` unless these fit."""
        spec = state.spec
        vectors = {name: arrays.slots[VECTOR + name] for name in state.vectors if VECTOR + name in arrays.slots}
        slots = {name: slot for name, slot in arrays.slots.items() if name.removeprefix(VECTOR) not in vectors}
        variable = cls(spec, arrays.value, state.initial, state.part, state.version, state.updates, state.declared)
        variable.stage = state.stage
        if state.optimizer is not None:
            variable.slot_specs = slot_specs(spec, state.declared or state.optimizer)
            variable.follow(state.optimizer)
        variable.slots, variable.vectors, variable.growth = slots, vectors, state.growth
        found = {name: TensorSpec.of(spec.name, slot) for name, slot in slots.items()}
        fit = all(spec.matches(vector) for vector in vectors.values()) and len(vectors) == len(state.vectors)
        if not spec.matches(arrays.value) or found != variable.slot_specs or not fit:
            raise ValueError(f"the arrays are not those of variable {spec} with {state.optimizer}")
        return variable

    def follow(self, optimizer: UpdateSpec) -> Rule:
        """Update by this optimizer from now on; returns its rule."""
        tuned = self.rule is not None
        self.optimizer, self.rule, self.schedule = optimizer, rule_for(optimizer), None
        if isinstance(optimizer, OptimizerSpec):
            if isinstance(optimizer.learning_rate, Schedule):
                self.schedule = optimizer.learning_rate
            else:
                self.learning_rate = float(optimizer.learning_rate)
        self.share = ordinary_growth(optimizer, self.limits)
        if tuned or not math.isfinite(self.share):  # slots may be far from values under the new hyperparameters
            self.growth = math.inf
        return self.rule

    def replaced(self, magnitude: float) -> None:
        """Note a new value, with elements of this magnitude."""
        if self.value.dtype.kind == "f" and (self.limits is None or not magnitude <= self.limits.state):
            self.growth = math.inf

    def check_growth(self, rows: Array | None, value: Array, slots: dict[str, Array]) -> None:
        """Check, after a checked update to this value and slots, or rows of them, whether the next one is checked."""
        rule, limits = self.rule, self.limits
        if rule is None or limits is None or not math.isfinite(self.share):
            return
        if not rule.within_limits(value, slots, limits):
            self.growth = math.inf
        elif rows is not None and self.growth < CHECKED_FROM:
            self.growth += self.share
        elif rows is None or (
            self.updates % UPDATES_BETWEEN_FULL_CHECKS == 0 and rule.within_limits(self.value, self.slots, limits)
        ):
            self.growth = 0.0

    def make_slots(self, rule: Rule) -> None:
        """Make the slots with their first values, by the rule it was declared with, whatever it follows by now."""
        self.slots = {}  # those of an earlier optimizer take no memory beside them
        self.slots = rule.slots(self.value)

    @property
    def nbytes(self) -> int:
        """Bytes of the value, its slots and vectors."""
        slots = sum([spec.nbytes for spec in self.slot_specs.values()])
        return self.spec.nbytes * (1 + len(self.vectors)) + slots

    def status(self) -> VariableStatus:
        """Its row in a shard's status."""
        return VariableStatus(
            spec=self.spec,
            version=self.version,
            updates=self.updates,
            optimizer=self.optimizer,
            slots=tuple(self.slot_specs),
            nbytes=self.nbytes,
            part=self.part,
            table=self.initial is not None,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            sampled=self.rounding.sampled,
            unchanged=self.rounding.unchanged,
        )

    def chosen_spec(self, choice: Choice) -> TensorSpec:
        """Shape and dtype of the answer to `choice`. Raises `InvalidMessage` for a slot or rows that do not exist."""
        spec = self.spec
        if choice.slot:
            if choice.slot not in self.slot_specs:
                there = ", ".join(self.slot_specs) or "none"
                raise InvalidMessage(f"variable {spec.name!r} has no slot {choice.slot!r}; there are: {there}")
            spec = self.slot_specs[choice.slot]
        if choice.rows is None:
            return spec
        if not spec.shape:
            raise InvalidMessage(f"variable {spec.name!r} is a scalar: it has no rows")
        return TensorSpec(spec.name, (len(choice.rows), *spec.shape[1:]), spec.dtype)


# --- registration and tuning ---------------------------------------------------------------------------------------


def agreed_bytes(known: Variable, declaration: Declaration) -> int:
    """Raise if a later declaration contradicts the first; returns the bytes of slots that it would add."""
    spec, optimizer = declaration.spec, declaration.optimizer
    registered, declared = whole_spec(known.spec, known.part), whole_spec(spec, declaration.part)
    same_script = ": do all workers run the same script?"
    if registered != declared:
        there = f"as {registered.dtype}{list(registered.shape)}"
        raise _differs(spec, there, f"{declared.dtype}{list(declared.shape)}{same_script}")
    if (spec, declaration.part) != (known.spec, known.part):
        there, hint = _part_text(known.spec, known.part), "do all workers name the same servers, in the same order?"
        raise _differs(spec, f"here {there}", f"it {_part_text(spec, declaration.part)}: {hint}")
    if declaration.value is not None and known.initial is not None:
        raise _differs(spec, "as a table", "a plain one")
    if declaration.initial is not None and declaration.initial != known.initial:
        raise _differs(spec, f"with {known.initial or 'a value of its own'}", f"{declaration.initial}{same_script}")
    if optimizer is None:
        return 0
    if is_next_optimizer(known, declaration):
        return _slot_bytes(spec, optimizer) - sum([slot.nbytes for slot in known.slot_specs.values()])
    if not (_agrees(known, optimizer) or is_behind(known, declaration)):
        by_now = "" if known.optimizer == known.declared else f" (by now it is {known.optimizer})"
        hint = (
            "a variable has one optimizer at a time, the same in all workers: do all of them run the same script? For "
            "another one from some step on, give it in all workers; for other hyperparameters call "
            "session.set_hyperparameters, and for a learning rate that changes give a schedule"
        )
        raise _differs(spec, f"with {known.declared}{by_now}", f"{optimizer}: {hint}")
    return 0


def is_next_optimizer(known: Variable, declaration: Declaration) -> bool:
    """Whether the variable gets the declared optimizer: its first, or another one, of a later stage."""
    optimizer = declaration.optimizer
    if optimizer is None or known.optimizer is None:
        return optimizer is not None
    return declaration.stage > known.stage and _differ_as_optimizers(known, optimizer)


def is_behind(known: Variable, declaration: Declaration) -> bool:
    """Whether the declared optimizer is another one, of an earlier stage than the variable's: nothing changes."""
    optimizer = declaration.optimizer
    if optimizer is None or known.optimizer is None:
        return False
    return declaration.stage < known.stage and _differ_as_optimizers(known, optimizer)


def _differ_as_optimizers(known: Variable, optimizer: UpdateSpec) -> bool:
    """Whether one can replace the other: a variable does not go from gradients to observations, or back."""
    both = isinstance(optimizer, OptimizerSpec) and isinstance(known.optimizer, OptimizerSpec)
    return both and not _agrees(known, optimizer)


def _agrees(known: Variable, optimizer: UpdateSpec) -> bool:
    return to_plain(optimizer) in [to_plain(one) for one in (known.declared, known.optimizer) if one is not None]


def _differs(spec: TensorSpec, registered: str, declared: str) -> AlreadyRegistered:
    return AlreadyRegistered(f"variable {spec.name!r} is registered {registered}, this worker declares {declared}")


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


def stored_slot_specs(state: VariableState) -> dict[str, TensorSpec]:
    """The slots of a variable of this state, of the optimizer that it was registered with, and its vectors."""
    slots = {} if state.optimizer is None else slot_specs(state.spec, state.declared or state.optimizer)
    return slots | {VECTOR + name: state.spec for name in state.vectors}


def initialize(value: Array, declaration: Declaration, start: int, stop: int) -> None:
    """Write the elements from `start` to `stop` of the initial value, which was sent or is computed here."""
    flat = value.reshape(-1)[start:stop]
    if declaration.initial is None:
        assert declaration.value is not None, "check_declarations was not called"
        np.copyto(flat, declaration.value.reshape(-1)[start:stop])
    else:
        row = 0 if declaration.part is None else declaration.part.first
        fill_elements(declaration.initial, flat, row * math.prod(value.shape[1:]) + start)


def tuned(variable: Variable, message: Tune) -> UpdateSpec:
    """The optimizer of a variable with the fields of the message changed; raises `TypeError` or `ValueError`."""
    assert variable.optimizer is not None, "check_tune was not called"
    unknown = set(message.fields) - {field.name for field in dataclasses.fields(message.optimizer)}
    if unknown:
        raise ValueError(f"{message.optimizer.kind} has no {', '.join(sorted(unknown))}")
    return dataclasses.replace(
        variable.optimizer, **{name: getattr(message.optimizer, name) for name in message.fields}
    )
