"""The checkpoints of a running shard: when the next is due, which old ones are removed, what became of the last.

The same for a server, which writes them in a thread beside training, and for an embedded shard, which writes between
two messages. There is no clock, thread or event loop in here.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from psserver.core.shard import Shard
from psserver.core.variable_arrays import VariableArrays
from psserver.storage import checkpoints, retention
from pswire.messages import CutReport, Message, ShardState
from pswire.specs.checkpoints import CheckpointEvery


class CheckpointSchedule:
    """The checkpoints of one shard in a folder; `write` may be called in a thread of its own.

    Attributes:
        folder: of all checkpoints.
        last: the number of the last one that is there; 0: none.
        problem: why the last attempt has failed; empty if it has not.
    """

    def __init__(self, folder: Path, every: CheckpointEvery | None, keep: int) -> None:
        self.folder, self.last, self.problem = folder, 0, ""
        self._every, self._keep = every, keep
        self._failed = 0  # the number of the last one that could not be written
        self._interval_began, self._changes_then = 0.0, (0, 0, 0)

    def begin_interval(self, shard: Shard, now: float) -> None:
        """Let the next checkpoint be due an interval after this moment."""
        self._interval_began, self._changes_then = now, _changes(shard)

    def due(self, shard: Shard, now: float) -> bool:
        """Whether the interval has passed, and the shard has changed since it began."""
        job, step, _ = self._changes_then
        steps = shard.global_step - (step if shard.job.number == job else 0)
        is_due = self._every is not None and self._every.due(now - self._interval_began, steps)
        return is_due and _changes(shard) != self._changes_then

    def write(
        self,
        state: ShardState,
        arrays: Iterator[tuple[str, VariableArrays]],
        late: Callable[[], Sequence[Message]] = tuple,
        *,
        final: bool,
        worker: Mapping[str, Any] | None = None,
        protect: int | None = None,
        spare: int | None = None,
    ) -> Path:
        """Write a checkpoint as `checkpoints.write`, and remove old ones as `retention.prune`; returns its folder.

        Raises `OSError`, or an error of this package. The caller then says what became of it: `succeed` or `fail`.
        """
        path = checkpoints.write(self.folder, state, arrays, late, final=final, worker=worker)
        retention.prune(self.folder, self._keep, state.shard, state.shards, protect=protect, spare=spare)
        return path

    def succeed(self, number: int) -> None:
        """Note that a checkpoint is written."""
        self.last, self.problem = number, ""

    def fail(self, number: int, problem: str) -> None:
        """Note why a checkpoint could not be written."""
        self._failed, self.problem = number, problem

    def filled_in(self, report: CutReport) -> CutReport:
        """The shard's report of a cut, with what became of its checkpoint."""
        number = report.number
        problem = self.problem if self.last < number <= self._failed else ""
        return dataclasses.replace(report, written=0 < number <= self.last, problem=problem, storage=True)


def _changes(shard: Shard) -> tuple[int, int, int]:
    return shard.job.number, shard.global_step, shard.version
