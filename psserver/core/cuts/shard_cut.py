"""The cut of one shard: copies of its variables at the snapshot, and what it still waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from psserver.core.cuts.late_changes import Late
from psserver.core.policies.policy import join_names
from psserver.core.variable_arrays import VariableArrays
from psserver.core.variables.array_tasks import ArrayTask, StepResult
from psserver.core.variables.variable import Variable
from pswire import messages as ms
from pswire.tensors.values import DTYPES, Array


@dataclass(slots=True, eq=False)
class VariableCopy:
    """A variable as it was at a cut; its arrays are copied in its order of tasks, before the first later change."""

    source: Variable
    variable: Variable
    vectors: dict[str, Array]  # of the source at the cut: they may be dropped before the copy is made
    copied: bool = False

    @classmethod
    def of(cls, source: Variable) -> VariableCopy:
        """A copy to be made."""
        value = np.empty(source.value.shape, source.value.dtype)
        slots = {name: np.empty(spec.shape, DTYPES[spec.dtype]) for name, spec in source.slot_specs.items()}
        vectors = {name: np.empty(value.shape, value.dtype) for name in source.vectors}
        copy = dataclasses.replace(source, value=value, slots=slots, vectors=vectors, copy=None)
        return cls(source, copy, source.vectors.copy())

    def start(self, result: StepResult) -> None:
        """Add the task that makes it, unless it was added before."""
        if self.source.copy is self:
            self.source.copy = None
            nbytes = self.variable.nbytes // 4  # relative to a rule that processes as many bytes
            result.tasks.append(ArrayTask(self.source.spec.name, nbytes, self._run))

    @property
    def arrays(self) -> VariableArrays:
        """Value, slots and vectors, once they are `copied`."""
        return self.variable.arrays

    def _run(self) -> None:
        np.copyto(self.variable.value, self.source.value)
        for name, slot in self.variable.slots.items():
            np.copyto(slot, self.source.slots[name])
        for name, vector in self.variable.vectors.items():
            np.copyto(vector, self.vectors[name])
        self.copied = True


@dataclass(slots=True, eq=False)
class ShardCut:
    """The cut `number` on this shard.

    `waiting` are the calls that were pending at the snapshot, `late` the changes of lower numbers since, `missing` the
    incarnations of workers that have not shown the number, and `holders` those that pull its values. For these, the
    late changes are made in the copies once all are copied and written; then `applied` are the variables. Those that
    have `released` it hold it no more, also if an earlier message arrives late.
    """

    number: int
    state: ms.ShardState
    copies: dict[str, VariableCopy]
    waiting: list[tuple[int, ms.Message]]
    missing: dict[str, int]
    late: list[Late] = field(default_factory=list)
    holders: set[ms.Sender] = field(default_factory=set)
    released: set[ms.Sender] = field(default_factory=set)
    writing: bool = False  # a server writes it to disk
    applied: Mapping[str, Variable] | None = None
    late_bytes: int = 0
    since: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether no change that belongs to it can arrive any more."""
        return not self.missing

    @property
    def readable(self) -> bool:
        """Whether values can be pulled: it is complete, and the late changes are made."""
        return self.complete and (not self.late or self.applied is not None)

    @property
    def may_apply(self) -> bool:
        """Whether the late changes can be made now, if no array task is left."""
        return not self.readable and self.complete and not self.writing and self.copied

    @property
    def copied(self) -> bool:
        """Whether all copies are made."""
        return all(copy.copied for copy in self.copies.values())

    @property
    def waiting_for(self) -> str:
        """The workers that have not shown the number."""
        return join_names(self.missing) if self.missing else ""

    @property
    def nbytes(self) -> int:
        """Bytes of its copies, and of its late changes."""
        return sum([copy.variable.nbytes for copy in self.copies.values()]) + self.late_bytes

    def version_of(self, name: str) -> int:
        """The version of a variable at the snapshot, 0 if it was registered later."""
        copy = self.copies.get(name)
        return 0 if copy is None else copy.variable.version

    def variables(self) -> Mapping[str, Variable]:
        """The variables of a `readable` cut by name."""
        if self.applied is not None:
            return self.applied
        return {name: copy.variable for name, copy in self.copies.items()}
