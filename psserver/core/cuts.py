"""Cuts: this shard's part of a state of all shards in which each push is on all of its shards, or on none.

A cut has a number. Changes carry the number of the last cut that their worker knew of when it began them, equal on all
shards. A shard that sees a higher number takes its snapshot first; a change of a lower number that arrives later is
kept beside the snapshot, for it may be in the snapshots of other shards. When every live worker has shown the number,
no such change can arrive any more, and the cut is complete. The proof is in docs/reliability.md.

Source: T. H. Lai and T. H. Yang, "On Distributed Snapshots", Information Processing Letters 25 (1987).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from psserver.core.events import Event, cut_given_up
from psserver.core.members.member import Member
from psserver.core.policies.policy import join_names
from psserver.core.state import VariableArrays
from psserver.core.variables.array_tasks import ArrayTask, StepResult
from psserver.core.variables.variable import Variable
from pswire import messages as ms
from pswire.messages import ShardState
from pswire.tensors.compression import Packed
from pswire.tensors.values import DTYPES, Array, IndexedSlices

#: Seconds in which the workers that were live at a snapshot have to show its number; then the cut is given up.
SECONDS_TO_SHOW = 600.0

#: Bytes that a late change, and each of its entries, takes beside its arrays: names, numbers, hyperparameters.
LATE_BYTES = 1 << 10

#: A change that belongs to a cut, although it arrived after the snapshot.
Late: TypeAlias = ms.Push | ms.Assign | ms.Tune | ms.Register | ms.Compute | ms.Evaluate


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
    state: ShardState
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

    def variables(self) -> Mapping[str, Variable]:
        """The variables of a `readable` cut by name."""
        if self.applied is not None:
            return self.applied
        return {name: copy.variable for name, copy in self.copies.items()}


class Cuts:
    """The cuts of one shard: one at a time. `number` is that of the last one that it has seen.

    `late_below`: a change of a lower number belongs to the cut in progress; 0: there is none that could. A single shard
    needs no late changes, and `decides` says that shard 0 decides about pushes when it applies them: what it applies
    after the snapshot comes after the cut on all shards.
    """

    def __init__(self, shards: int, *, decides: bool) -> None:
        self.number = self.completed = self.late_below = 0
        self.stored = False  # whether a server writes each cut to disk, from its beginning
        self.enabled = True  # False while messages are replayed, whose cuts were taken before
        self.current: ShardCut | None = None
        self.not_before = -math.inf  # a time before which no other cut begins
        self.free_bytes: Callable[[], float] = lambda: math.inf  # that late changes may still take
        self._given_up: ShardCut | None = None
        self._why_given_up = ""
        self._events: list[Event] = []
        self._seen: ShardCut | None = None  # at the last tick
        self._shards, self.decides = shards, decides

    def begin(
        self,
        number: int,
        state: ShardState,
        variables: Mapping[str, Variable],
        waiting: list[tuple[int, ms.Message]],
        live: Iterable[Member],
        now: float,
    ) -> ShardCut:
        """Begin the cut of this number; the copies of variables are made with their next change, or one by one."""
        copies = {}
        for name, variable in variables.items():
            copies[name] = variable.copy = VariableCopy.of(variable)
        missing = {member.name: member.incarnation for member in live} if self._shards > 1 else {}
        self.number, self.late_below = number, number if missing else 0
        self.current = ShardCut(number, state, copies, waiting, missing, writing=self.stored, since=now)
        if not missing:
            self.completed = number
        return self.current

    def skip(self, number: int) -> None:
        """Note a cut that this shard has no part in."""
        self.number = number

    def show(self, member: Member, number: int) -> None:
        """Note that a worker sends no more changes below this number."""
        cut = self.current
        if cut is not None and number >= cut.number and cut.missing.get(member.name) == member.incarnation:
            self.leave([member.name])

    def leave(self, workers: Iterable[str]) -> None:
        """Wait no longer for these workers, and hold nothing for them that are gone."""
        cut = self.current
        if cut is None or not cut.missing:
            return
        for worker in workers:
            cut.missing.pop(worker, None)
        if not cut.missing:
            self.late_below, self.completed = 0, cut.number

    def release(self, workers: Iterable[str]) -> None:
        """Hold the values of the cut no longer for these workers."""
        if self.current is not None:
            gone = set(workers)
            self.current.holders = {one for one in self.current.holders if one.worker not in gone}
            self.end_if_idle()

    def end_if_idle(self, unless: int = 0) -> None:
        """Drop the cut if it is complete and nobody needs it, unless it has this number."""
        cut = self.current
        if cut is not None and cut.complete and not cut.holders and not cut.writing and cut.number != unless:
            self.end()

    def tick(self) -> None:
        """Drop a cut that nobody has needed since the tick before; a worker may be about to hold it."""
        if self.current is not None and self.current is self._seen:
            self.end_if_idle()
        self._seen = self.current

    def end(self) -> None:
        """Drop the cut: it was written, or nobody needs it."""
        if self.current is not None:
            for copy in self.current.copies.values():
                if copy.source.copy is copy:
                    copy.source.copy = None
        self.current, self.late_below = None, 0

    @property
    def busy(self) -> ShardCut | None:
        """The cut that is not over: another one cannot begin. One that was given up is, when it is written no more."""
        if self.current is None and self._given_up is not None and self._given_up.writing:
            return self._given_up
        return self.current

    def keep_late(self, change: Late) -> None:
        """Keep a change of a lower number, which was applied just now; a push only if shard 0 does not decide here.

        If there is no memory for it, the cut is given up: training goes on.
        """
        cut = self.current
        if cut is None or (self.decides and isinstance(change, ms.Push)):
            return
        nbytes = ms.tensor_bytes(change) + LATE_BYTES * (1 + ms.entries(change))
        if nbytes > self.free_bytes():
            self._give_up(cut, f"{len(cut.late):,} late changes take {cut.late_bytes:,} bytes, all of --memory-limit")
            return
        cut.late.append(_owned(change, cut.copies))
        cut.late_bytes += nbytes

    def check_time(self, now: float) -> None:
        """Give up a cut whose number some workers have not shown in time: they may never, and others cannot begin."""
        cut = self.current
        if cut is not None and cut.missing and now - cut.since > SECONDS_TO_SHOW:
            self._give_up(cut, f"more than {SECONDS_TO_SHOW:g} s have passed")

    def events(self) -> list[Event]:
        """What has happened since the last call."""
        happened, self._events = self._events, []
        return happened

    def _give_up(self, cut: ShardCut, why: str) -> None:
        self._why_given_up = f"{why}, and {cut.waiting_for} did not show its number: a worker does when its push ends"
        self._events.append(cut_given_up(cut.number, self._why_given_up))
        self._given_up, cut.late, cut.late_bytes = cut, [], 0
        self.end()

    def report(self, number: int) -> ms.CutReport:
        """The state of a cut on this shard, as far as it is known without its storage."""
        cut = self.current
        if cut is None or cut.number != number:
            over = "" if self.completed == number else f"this shard has no part of cut {number}"
            if self._given_up is not None and self._given_up.number == number:
                over = f"nobody: this shard has given cut {number} up, since {self._why_given_up}"
            return ms.CutReport(number=number, complete=self.completed >= number, waiting_for=over, gone=True)
        if cut.holders and cut.complete and not cut.readable:
            return ms.CutReport(number=number, waiting_for="copies of the variables", held=True)
        return ms.CutReport(number=number, complete=cut.complete, waiting_for=cut.waiting_for, held=bool(cut.holders))


def _owned(change: Late, snapshot: Mapping[str, VariableCopy]) -> Late:
    """A copy of the change that owns its arrays (a message's arrays are borrowed until its answer).

    Gradients of weights that were read after the snapshot get the version at the snapshot: the cut has no later one.
    The order of late changes is that in which they were made, so they wait for no others (`after`), which the cut may
    not have.
    """
    match change:
        case ms.Push():
            gradients = []
            for one in change.gradients:
                newest = snapshot[one.name].variable.version if one.name in snapshot else 0
                version = min(one.version, newest)
                gradients.append(dataclasses.replace(one, version=version, array=_copied(one.array)))
            return dataclasses.replace(change, gradients=tuple(gradients), after=())
        case ms.Assign():
            assignments = [dataclasses.replace(one, array=one.array.copy()) for one in change.assignments]
            return dataclasses.replace(change, assignments=tuple(assignments), after=())
        case ms.Register():
            values = [None if one.value is None else one.value.copy() for one in change.declarations]
            pairs = zip(change.declarations, values, strict=True)
            declarations = [dataclasses.replace(one, value=value) for one, value in pairs]
            return dataclasses.replace(change, declarations=tuple(declarations))
        case _:
            return change


def _copied(array: Array | IndexedSlices | Packed) -> Array | IndexedSlices | Packed:
    match array:
        case IndexedSlices():
            values = _copied(array.values)
            return IndexedSlices(values, array.indices.copy(), array.shape, check_range=False)  # type: ignore[arg-type]
        case Packed():
            return Packed(array.form, array.shape, tuple([part.copy() for part in array.parts]))
        case _:
            return array.copy()
