"""A variable on a shard: value, slots and counts. Changed only by the store.

May import the rules and `pswire`'s pure half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pswire.errors import InvalidMessage
from pswire.messages import Choice, VariableStatus
from pswire.optimizers import OptimizerSpec, Rule, UpdateSpec, ordinary_growth, rule_for
from pswire.optimizers.limits import GUARDED, LIMITS, Limits
from pswire.specs.initializers import RowInitializer
from pswire.specs.schedules import Schedule
from pswire.tensors.values import Array, Part, TensorSpec

#: The number of updates of a guarded table between two checks of the whole table instead of the changed rows only.
UPDATES_BETWEEN_FULL_CHECKS = 1000


@dataclass(slots=True)
class Variable:
    """One variable, or the part of it on this shard.

    Attributes:
        initial: the initializer of the rows of a table; None: a plain variable.
        version, updates: counts of all changes, and of those by its optimizer.
        declared, optimizer, rule: the optimizer it was registered with, the current one, and its update rule.
        schedule, learning_rate: a schedule of the learning rate, or else its constant; 1 for a rule without one.
        limits: magnitudes of an ordinary update (`pswire.optimizers.limits`); None: no update is ordinary.
        share: the growth of one ordinary update.
        growth: their sum since all elements were last known to be within the limits; infinite while they are not.
    """

    spec: TensorSpec
    value: Array
    initial: RowInitializer | None = None
    part: Part | None = None
    version: int = 0
    updates: int = 0
    declared: UpdateSpec | None = None
    optimizer: UpdateSpec | None = None
    rule: Rule | None = None
    slot_specs: dict[str, TensorSpec] = field(default_factory=dict)
    slots: dict[str, Array] = field(default_factory=dict)
    schedule: Schedule | None = None
    learning_rate: float = 1.0
    limits: Limits | None = None
    share: float = 0.0
    growth: float = 0.0

    def __post_init__(self) -> None:
        """Find the limits."""
        self.limits = LIMITS.get(self.spec.dtype)

    def follow(self, optimizer: UpdateSpec) -> Rule:
        """Update by this optimizer from now on; returns its rule."""
        self.optimizer, self.rule, self.schedule = optimizer, rule_for(optimizer), None
        if isinstance(optimizer, OptimizerSpec):
            if isinstance(optimizer.learning_rate, Schedule):
                self.schedule = optimizer.learning_rate
            else:
                self.learning_rate = float(optimizer.learning_rate)
        self.share = ordinary_growth(optimizer, self.rule, self.limits)
        return self.rule

    def replaced(self, magnitude: float) -> None:
        """Note a new value, with elements of this magnitude."""
        if self.value.dtype.kind == "f" and (self.limits is None or not magnitude <= self.limits.state):
            self.growth = math.inf

    def check_growth(self, rows: Array | None, value: Array, slots: dict[str, Array]) -> None:
        """Check, after a guarded update to this value and slots, or rows of them, whether the next one is guarded."""
        rule, limits = self.rule, self.limits
        if rule is None or limits is None or not math.isfinite(self.share):
            return
        if not rule.settled(value, slots, limits):
            self.growth = math.inf
        elif rows is not None and self.growth < GUARDED:
            self.growth += self.share
        elif rows is None or (
            self.updates % UPDATES_BETWEEN_FULL_CHECKS == 0 and rule.settled(self.value, self.slots, limits)
        ):
            self.growth = 0.0

    def make_slots(self, rule: Rule) -> None:
        """Make the slots with their first values, by the rule it was registered with, whatever it follows by now."""
        self.slots = rule.slots(self.value)

    @property
    def nbytes(self) -> int:
        """Bytes of the value and its slots."""
        return self.spec.nbytes + sum([spec.nbytes for spec in self.slot_specs.values()])

    def status(self) -> VariableStatus:
        """Its row in a shard's status."""
        counts, slots, is_table = (self.version, self.updates), tuple(self.slot_specs), self.initial is not None
        return VariableStatus(self.spec, *counts, self.optimizer, slots, self.nbytes, self.part, is_table)

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
