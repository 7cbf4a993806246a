"""Late changes: those that belong to a cut, but arrive after its snapshot. They are kept beside it, and made again.

They are made in the variables of the cut, by a shard that was restored from it, by the same rules to the same bits.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Protocol

from psserver.core.variables.array_tasks import ArrayTask, StepResult, TasksPending, run
from pswire import messages as ms
from pswire.errors import NotJoined, ParamServerError
from pswire.tensors.compression import Packed
from pswire.tensors.values import Array, IndexedSlices

#: A change that belongs to a cut, although it arrived after the snapshot.
Late = ms.Push | ms.Assign | ms.Tune | ms.Register | ms.Compute | ms.Evaluate


def owned(change: Late, version_of: Callable[[str], int]) -> Late:
    """A copy of the change that owns its arrays (a message's arrays are borrowed until its answer).

    Gradients of weights that were read after the snapshot get the version at the snapshot: the cut has no later one.
    The order of late changes is that in which they were made, so they wait for no others (`after`), which the cut may
    not have.
    """
    match change:
        case ms.Push():
            gradients = []
            for one in change.gradients:
                version = min(one.version, version_of(one.name))
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


class Steps(Protocol):
    """A shard, as a `Shard` is."""

    shard: int
    shards: int

    def check(self, message: ms.Message) -> object:
        """As `Shard.check`."""

    def step(self, ticket: int, message: ms.Message, now: float, *, settled: bool) -> StepResult:
        """As `Shard.step`."""


class LateSteps:
    """The steps of a shard by late changes of its cut: `tasks` that are left to run, and what it has `refused`.

    The tasks come after those of the copies.
    """

    def __init__(self, shard: Steps, now: float) -> None:
        self.tasks: list[ArrayTask] = []
        self.refused: list[tuple[Late, ParamServerError]] = []
        self._shard, self._now, self._tickets = shard, now, itertools.count(-1, -1)

    def change(self, change: ms.Message) -> None:
        """Make a change, whose worker may have joined after the snapshot."""
        assert isinstance(change, Late), "other messages are not kept with a cut"
        shard, sender = self._shard, change.sender
        try:
            try:
                shard.check(change)
            except NotJoined:
                worker, incarnation = sender.worker, sender.incarnation
                self.take(ms.Join(worker=worker, incarnation=incarnation, shard=shard.shard, shards=shard.shards))
            self.take(change)
        except ParamServerError as error:
            self.refused.append((change, error))

    def take(self, message: ms.Message) -> None:
        """Take a message; runs the tasks so far if the step needs their results."""
        step, tasks = self._shard.step, self.tasks
        try:
            tasks += step(next(self._tickets), message, self._now, settled=not tasks).tasks
        except TasksPending:
            run(tasks)
            tasks[:] = step(next(self._tickets), message, self._now, settled=True).tasks
