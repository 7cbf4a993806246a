"""Late changes are made again: in the variables of their cut, by the same rules to the same bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Protocol

from psserver.core.cuts.cuts import Cuts
from psserver.core.cuts.late_changes import Late
from psserver.core.minimization.minimizations import Minimizations
from psserver.core.updates.pending_calls import PendingCalls
from psserver.core.variables.array_tasks import ArrayTask, StepResult, TasksPending, run
from pswire import messages as ms
from pswire.errors import NotJoined, ParamServerError


class Steps(Protocol):
    """A shard, as a `Shard` is."""

    shard: int
    shards: int
    cuts: Cuts

    def check(self, message: ms.Message) -> object:
        """As `Shard.check`."""

    def step(self, ticket: int, message: ms.Message, now: float, *, settled: bool) -> StepResult:
        """As `Shard.step`."""


class LateSteps:
    """The steps of a shard by the late changes of the cut from which it was restored.

    Attributes:
        tasks: are left to run, after those of the copies.
        refused: a sentence for each change that the shard has refused.
    """

    def __init__(
        self,
        shard: Steps,
        changes: Iterable[ms.Message],
        minimizations: Minimizations,
        pending: PendingCalls,
        now: float,
    ) -> None:
        self.tasks: list[ArrayTask] = []
        self.refused: list[str] = []
        self._shard, self._now, self._tickets = shard, now, itertools.count(-1, -1)
        minimizations.begin_late()
        for change in changes:
            self._change(change)
        minimizations.end_late()
        if gone := pending.gone_at_cut():
            self._take(ms.Tick(lost=gone))

    def _change(self, change: ms.Message) -> None:
        """Make a change, whose worker may have joined after the snapshot."""
        assert isinstance(change, Late), "other messages are not kept with a cut"
        shard, sender = self._shard, change.sender
        try:
            try:
                shard.check(change)
            except NotJoined:
                worker, incarnation = sender.worker, sender.incarnation
                self._take(ms.Join(worker=worker, incarnation=incarnation, shard=shard.shard, shards=shard.shards))
            self._take(change)
        except ParamServerError as error:
            kind, number = type(change).__name__, shard.cuts.number
            self.refused.append(f"a late {kind} of checkpoint {number} was left out: {error}")

    def _take(self, message: ms.Message) -> None:
        """Take a message; runs the tasks so far if the step needs their results."""
        step, tasks = self._shard.step, self.tasks
        try:
            tasks += step(next(self._tickets), message, self._now, settled=not tasks).tasks
        except TasksPending:
            run(tasks)
            tasks[:] = step(next(self._tickets), message, self._now, settled=True).tasks
