"""Checkpoints of an embedded shard: restored before its first message, and written between two of its messages.

The calling thread steps the shard, so its state between two messages is a cut: nothing is copied, and training waits
while a checkpoint is written. With `psworker.transport.embedded`, the only module outside psserver that imports it.
"""

import dataclasses
import fcntl
import logging
import os
import time
from pathlib import Path

from psserver.core.shard import Shard
from psserver.core.state import MembershipState, ShardState
from psserver.core.variables.array_tasks import run
from psserver.storage import checkpoint_folders, checkpoints, retention
from pswire.errors import AlreadyRegistered, ConfigurationError, ParamServerError, ShapeMismatch, StorageError
from pswire.messages import Cut, CutReport, Register, Tick
from psworker.config import CheckpointConfig
from psworker.transport import WorkerPart

logger = logging.getLogger(__name__)

_SHARD, _SHARDS = 0, 1


class EmbeddedCheckpoints:
    """The checkpoints of the shard in this process, in a folder that no other process uses at the same time.

    Not thread-safe. `worker` has the worker's part of each.
    """

    def __init__(self, config: CheckpointConfig, worker: WorkerPart) -> None:
        folder = config.folder
        assert folder is not None
        self._folder, self._every, self._keep, self._worker = folder, config.checkpoint_every, config.keep, worker
        self._shard: Shard | None = None
        self._lock = -1
        self._resumed_from: Path | None = None
        self._unchecked: set[str] | None = None  # variables of the checkpoint, until the program has registered its own
        self._last = 0  # the number of the last checkpoint that was written or restored
        self._last_state: ShardState | None = None  # in it
        self._tried_at, self._tried_step = 0.0, 0
        self._problem = ""

    @property
    def started(self) -> bool:
        """Whether there is a shard, from `start` to `close`."""
        return self._shard is not None

    # --- the start ------------------------------------------------------------------------------------------------

    def start(self, shard: Shard) -> None:
        """Restores the newest checkpoint that can be read, if there is one, into a new shard.

        Members of the job other than the one that joins now are gone: their blocks of examples are handed out again.

        Raises `StorageError` if the folder cannot be used: another process uses it, it belongs to servers, or none of
        its checkpoints can be read.
        """
        self._lock = _locked(self._folder)
        try:
            self._restore(shard)
        except BaseException:
            self._unlock()
            raise
        self._shard = shard
        self._tried_at, self._tried_step = time.monotonic(), shard.global_step

    def _restore(self, shard: Shard) -> None:
        folder = self._folder
        _check_embedded(folder)
        checkpoint_folders.sweep(folder, _SHARD, _SHARDS)
        found = checkpoints.latest(folder, _SHARD, _SHARDS)
        for error in found.skipped:
            logger.warning("checkpoint skipped: %s", error)
        checkpoint = found.checkpoint
        if checkpoint is None:
            if found.skipped:
                raise StorageError(
                    f"none of the {len(found.skipped)} checkpoints in {folder} can be read: restore them from a copy, "
                    "or remove the folder to begin the job anew"
                )
            logger.info("no checkpoint in %s yet; the next ones are written there", folder)
            return
        manifest, state, now = checkpoint.manifest, checkpoint.state, time.monotonic()
        try:
            shard.restore(state, checkpoint.arrays, now)
        except (ParamServerError, ValueError) as error:
            raise StorageError(f"checkpoint {manifest.path} cannot continue in one process: {error}") from error
        live = tuple([member.name for member in state.members.members if member.state == "live"])
        run(shard.step(0, Tick(live), now).tasks)
        if manifest.worker is not None:
            self._worker.restore(manifest.worker)
        self._resumed_from, self._unchecked = manifest.path, {one.spec.name for one in state.variables}
        self._last, self._last_state = manifest.number, _without_members(shard.state())
        logger.warning(
            "the job continues from checkpoint %s, of global step %d, written %s",
            *(manifest.path, state.global_step, manifest.written),
        )

    def check(self, message: Register) -> None:
        """Checks that the program's first variables are those of the checkpoint.

        A program registers what it has before it trains, so a checkpoint has all of these. It may have others, which
        the program makes later. Raises `ConfigurationError` otherwise.
        """
        if self._unchecked is None or not message.declarations:
            return
        known, self._unchecked = self._unchecked, None
        names = {one.spec.name for one in message.declarations}
        if names <= known:
            return
        raise ConfigurationError(
            f"the program has variables that checkpoint {self._resumed_from} does not have: "
            f"{', '.join(sorted(names - known))}; and the checkpoint has others: "
            f"{', '.join(sorted(known - names)) or 'none'}. If the program was changed, give it another "
            "checkpoint_dir, or remove that folder; psworker.load(..., strict=False) takes over a saved model"
        )

    def explained(self, error: ParamServerError) -> ParamServerError:
        """The error of a message, with the checkpoint that the job continues from, where it may be the reason."""
        if self._resumed_from is None or not isinstance(error, AlreadyRegistered | ShapeMismatch):
            return error
        return type(error)(
            f"{error} (the job continues from checkpoint {self._resumed_from}: if the program was changed, give it "
            "another checkpoint_dir, or remove that folder)"
        )

    # --- writing --------------------------------------------------------------------------------------------------

    def after_push(self) -> None:
        """Writes a checkpoint if one is due; to be called after each push. Raises nothing: training goes on."""
        shard = self._open
        self._worker.note_push()
        if self._every.due(time.monotonic() - self._tried_at, shard.global_step - self._tried_step):
            self._try_write()

    def answer(self, message: Cut) -> CutReport:
        """The answer to a request for a checkpoint now (number 0), or about one; errors are in the report."""
        number = message.number
        if not number:
            self._try_write()
            number = self._open.cuts.number
        written = number <= self._last
        return CutReport(number, complete=True, written=written, problem="" if written else self._problem)

    def close(self) -> None:
        """Writes a last checkpoint, if anything has changed since the one before; leaves the folder.

        The first one needs an update: a program that failed before has lost nothing, and may be changed.
        """
        shard = self._shard
        if shard is None:
            return
        try:
            if (self._last or shard.global_step) and _without_members(shard.state()) != self._last_state:
                self._try_write(final=True)
        finally:
            self._shard = None
            self._unlock()

    @property
    def _open(self) -> Shard:
        assert self._shard is not None, "started"
        return self._shard

    def _try_write(self, *, final: bool = False) -> None:
        """Writes a checkpoint now, and removes old ones; a failure is logged once, until there is a success."""
        shard = self._open
        self._tried_at, self._tried_step = time.monotonic(), shard.global_step
        try:
            path = self._write(shard, final=final)
        except (OSError, ParamServerError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            problem = f"no checkpoint could be written to {self._folder}: {reason}"
            if problem != self._problem:
                logger.error("%s; training goes on, and the next one is tried as usual", problem)
            self._problem = problem
        else:
            if self._problem:
                logger.warning("checkpoints are written to %s again", self._folder)
            self._problem = ""
            logger.info("checkpoint %s was written", path)
        self._tried_at = time.monotonic()

    def _write(self, shard: Shard, *, final: bool) -> Path:
        shard.cuts.skip(max(shard.cuts.number + 1, shard.global_step))
        state = shard.state()
        path = checkpoints.write(
            self._folder, state, shard.arrays(), lambda: (), final=final, worker=self._worker.data()
        )
        self._last, self._last_state = state.cut, _without_members(state)
        retention.prune(self._folder, self._keep, _SHARD, _SHARDS)
        return path

    def _unlock(self) -> None:
        os.close(self._lock)
        self._lock = -1


def _without_members(state: ShardState) -> ShardState:
    """What of a state must be written down again when it has changed."""
    return dataclasses.replace(state, members=MembershipState(), cut=0, repeated=0)


def _check_embedded(folder: Path) -> None:
    """Raises `StorageError` if the newest checkpoint is of several shards, or what came after it is in a journal."""
    advice = "give the program a folder of its own, or start these servers again"
    found = checkpoint_folders.found(folder)
    newest = found[max(found)] if found else {(_SHARD, _SHARDS)}
    if (_SHARD, _SHARDS) not in newest:
        shards = max(shards for _, shards in newest)
        raise StorageError(f"the checkpoints in {folder} are of a job with {shards} servers: {advice}")
    if any(folder.glob("journal-*")):
        raise StorageError(f"{folder} has the journal of a server, which a program cannot continue: {advice}")


def _locked(folder: Path) -> int:
    """A descriptor of the folder, which is made if it is not there, with a lock that ends with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"checkpoint folder {folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StorageError(
            f"checkpoint folder {folder} is in use by another process: wait for its end, or give each job its own"
        ) from error
    return descriptor
