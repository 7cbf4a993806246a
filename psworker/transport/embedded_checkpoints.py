"""Checkpoints of an embedded shard: found before its first message, and written between two of its messages.

Its folder is as of a server with one shard (`psserver.storage.find_start`). The calling thread steps the shard, so its
state between two messages is a cut: nothing is copied, and training waits while a checkpoint is written. With
`psworker.transport.embedded`, the only module outside psserver that imports it.
"""

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import run
from psserver.storage.checkpoint_schedule import CheckpointSchedule
from psserver.storage.find_start import find_start
from psserver.storage.folders import lock_shard
from psserver.storage.start import Start
from pswire.errors import ConfigurationError, ParamServerError, StorageError
from pswire.messages import (
    Assign,
    Compute,
    Cut,
    CutReport,
    MembershipState,
    Push,
    Register,
    Request,
    ShardState,
    Tick,
    Tune,
)
from psworker.config import WorkerConfig
from psworker.transport import WorkerPart

logger = logging.getLogger(__name__)

_AT = 0, 1  # the shard, and the number of shards


class EmbeddedCheckpoints:
    """The checkpoints of the shard in this process, in a folder that no other process uses at the same time.

    Not thread-safe. `worker` has the worker's part of each.
    """

    def __init__(self, config: WorkerConfig, worker: WorkerPart) -> None:
        folder = config.folder
        assert folder is not None
        self._folder, self._worker = folder, worker
        self._writer = CheckpointSchedule(folder, config.checkpoint_every, config.keep)
        self._shard: Shard | None = None
        self._lock: ExitStack | None = None
        self._process = -1
        self._start = Start(folder, *_AT)
        self._begun = False  # the run: nothing is written before its first change
        self._unchecked: set[str] = set()  # variables of the checkpoint, until the program has registered its own
        self._last_kept: tuple[ShardState, dict[str, Any]] | None = None  # in the last checkpoint

    @property
    def started(self) -> bool:
        """True from `start` to `close`, while there is a shard."""
        return self._shard is not None

    # --- the start ------------------------------------------------------------------------------------------------

    def start(self, shard: Shard) -> None:
        """Gives a new shard the state of the newest checkpoint that is intact, if there is one.

        All members of the job are gone: their blocks of examples are handed out again.

        Raises `StorageError` if the folder cannot be used, another process uses it, or none of its checkpoints is
        intact.
        """
        self._lock = lock_shard(self._folder, *_AT)
        try:
            self._restore(shard, time.monotonic())
        except BaseException:
            self._unlock()
            raise
        self._shard, self._process = shard, os.getpid()

    def _restore(self, shard: Shard, now: float) -> None:
        self._start = start = find_start(self._folder, *_AT)
        if start.lost:
            start.give_up(f"steps after checkpoint {start.number}, if there were any, are repeated")
        try:
            start.restore(shard, now)
        except (ParamServerError, ValueError) as error:
            raise StorageError(f"{self._folder}: checkpoint {start.number} cannot continue here: {error}") from error
        state = start.state
        if state is None:
            logger.info("no checkpoint in %s yet: the job begins", self._folder)
            return
        live = tuple([member.name for member in state.members.members if member.state == "live"])
        run(shard.step(0, Tick(lost=live), now).tasks)
        self._writer.last = start.number
        for note in start.notes:
            logger.warning("%s: %s", self._folder, note)

    def joined(self) -> None:
        """To be called when the worker has joined: the job continues from the checkpoint, or another one has begun."""
        shard, start = self._open, self._start
        self._writer.begin_interval(shard, time.monotonic())
        if start.state is None:
            return
        if shard.job != start.state.job:
            logger.info("%s begins after %s, whose last state is %s", shard.job, start.state.job, start.source)
            return
        if start.worker is not None:
            self._worker.restore(start.worker)
        self._unchecked = {one.spec.name for one in start.state.variables}
        self._last_kept = _kept(shard.state(), self._worker.data())
        logger.warning("the job continues from %s", start.source)

    def check(self, message: Register) -> None:
        """Checks that the program's first variables are the ones in the checkpoint.

        A program registers what it has before it trains, so a checkpoint has all of these. It may have others, which
        the program makes later. Raises `ConfigurationError` otherwise.
        """
        known, self._unchecked = self._unchecked, set()
        names = {one.spec.name for one in message.declarations}
        if not known or names <= known:
            return
        raise ConfigurationError(
            f"the program has variables that are not in {self._start.source}: {', '.join(sorted(names - known))}; and "
            f"there are others: {', '.join(sorted(known - names)) or 'none'}. If the program was changed, give it "
            "another checkpoint_dir, or remove that folder; psworker.load(..., strict=False) takes over a saved model"
        )

    def explained(self, error: ParamServerError) -> ParamServerError:
        """As `Start.explained`."""
        return self._start.explained(error, self._open.job)

    # --- writing --------------------------------------------------------------------------------------------------

    def before(self, message: Request) -> None:
        """To be called before each message: the run begins with its first change, or later if the disk is full."""
        if not self._begun and not self._writer.problem and isinstance(message, Push | Assign | Tune | Compute):
            self._try(self._begin)

    def after_update(self) -> None:
        """To be called after each push and each accepted point: writes a checkpoint if one is due. Raises nothing."""
        self._worker.note_push()
        if self._writer.due(self._open, time.monotonic()):
            self._begin_cut()
            self._try_write()

    def reported(self, message: Cut, report: CutReport) -> CutReport:
        """The shard's answer to a request, with what its storage knows: a cut is written at once when it begins."""
        if not message.number and report.number:
            self._try_write()
        return self._writer.completed(report)

    def close(self) -> None:
        """Writes a last checkpoint, if anything has changed since the one before; leaves the folder.

        Does nothing in a fork of the process: the folder is its parent's.
        """
        shard = self._shard
        if shard is None or os.getpid() != self._process:
            return
        try:
            if self._begun and _kept(shard.state(), self._worker.data()) != self._last_kept:
                self._begin_cut()
                self._try_write(final=True)
        finally:
            self._shard = None
            self._unlock()

    @property
    def _open(self) -> Shard:
        assert self._shard is not None, "started"
        return self._shard

    def _begin(self) -> None:
        for note in self._start.begin(self._open, journal=False):
            logger.warning("%s: %s", self._folder, note)
        self._start.confirm()
        self._begun = True

    def _begin_cut(self) -> None:
        self._open.cuts.number_state()  # the shard copies nothing for it

    def _try_write(self, *, final: bool = False) -> None:
        """Writes the shard's last cut; the next one is due an interval later, even if it could not be written."""
        self._try(self._write, final)
        self._writer.begin_interval(self._open, time.monotonic())

    def _write(self, final: bool) -> None:
        if not self._begun:
            self._begin()
        state, arrays, worker = self._open.state(), iter(self._open.arrays().items()), self._worker.data()
        path = self._writer.write(state, arrays, final=final, worker=worker)
        self._writer.succeed(state.cut)
        self._last_kept = _kept(state, worker)
        logger.info("checkpoint %s was written", path.parent)

    def _try(self, attempt: Callable[..., None], *arguments: bool) -> None:
        """Logs what an attempt to write raises, once until there is a success."""
        before = self._writer.problem
        try:
            attempt(*arguments)
        except (OSError, ParamServerError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            problem = f"no checkpoint could be written to {self._folder}: {reason}"
            if problem != before:
                logger.error("%s; training goes on, and the next one is tried as usual", problem)
            self._writer.fail(self._open.cuts.number, problem)
        else:
            if before:
                logger.warning("checkpoints are written to %s again", self._folder)
            self._writer.problem = ""

    def _unlock(self) -> None:
        self._start.close()
        if self._lock is not None:
            self._lock.close()


def _kept(state: ShardState, worker: dict[str, Any]) -> tuple[ShardState, dict[str, Any]]:
    """The state that must be written again when it has changed."""
    return dataclasses.replace(state, members=MembershipState(), cut=0, repeated=0), worker
