"""The writer of checkpoints: each cut of a running shard in files, by a thread, one after another."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from psserver.config import StorageConfig
from psserver.core import events
from psserver.core.cuts.shard_cut import ShardCut
from psserver.core.shard import Shard
from psserver.measurements import Measurements
from psserver.runtime.cut_copies import Aborted, CutCopies
from psserver.runtime.event_log import EventLog
from psserver.runtime.task_order import TaskOrder
from psserver.storage import retention
from psserver.storage.checkpoint_schedule import CheckpointSchedule
from psserver.storage.journal import Journal
from pswire.errors import ParamServerError

#: Seconds that a stopping server waits for a checkpoint that is being written.
_FINISH_TIMEOUT = 600.0

#: The newest cuts on disk that heartbeats report, at most.
REPORTED_CUTS = 16

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class CheckpointWriter:
    """Writes cuts of `shard`, and removes old checkpoints and the segments of `journal` that they replace.

    Attributes:
        schedule: when the next checkpoint is due, and what became of the last.
        writing: the task that writes one.
        written_at: when the last one was written.
        complete: set when the cut that is written is complete, or will never be.
        cuts: the newest on disk; set by the thread.
        written_by_all: the newest cut that all shards are known to have written; set by the event loop.
    """

    def __init__(
        self,
        config: StorageConfig,
        shard: Shard,
        tasks: TaskOrder,
        log_of_events: EventLog,
        measurements: Measurements,
    ) -> None:
        self.schedule = CheckpointSchedule(config.folder, config.checkpoint_every, config.keep)
        self.writing: asyncio.Task[None] | None = None
        self.complete = asyncio.Event()
        self.cuts: tuple[int, ...] = ()
        self.written_by_all = 0
        self._config, self._shard, self._tasks = config, shard, tasks
        self._events, self._measurements = log_of_events, measurements
        self._journal: Journal | None = None
        self._oldest = 0  # the first segment of the journal, if it stays
        self._segment_begun: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="psserver-checkpoint")
        self._loop = asyncio.get_running_loop()
        self.written_at = self._loop.time()

    def begin(self, shard: Shard, last: int, journal: Journal | None, oldest: int) -> None:
        """Go on with this shard and its journal after checkpoint `last`; `oldest` is the first segment."""
        self._shard, self._journal, self._oldest = shard, journal, oldest
        self.schedule.last = last
        self.schedule.begin_interval(shard, self._loop.time())

    def begin_writing(self, cut: ShardCut, segment_begun: asyncio.Future[None] | None) -> None:
        """Have a cut written, whose segment of the journal has begun at the end of `segment_begun`."""
        self._segment_begun = segment_begun
        self.complete.clear()
        self.writing = self._loop.create_task(self.write(cut, final=False))

    async def write(self, cut: ShardCut, *, final: bool) -> None:
        """Write a cut, and drop journal segments that it replaces. Raises nothing: training goes on without it."""
        began, nbytes = self._loop.time(), cut.nbytes
        copies = CutCopies(cut, self._tasks)
        copying = self._loop.create_task(copies.make(self._completed))
        try:
            await self.in_thread(self._to_disk, cut, copies, final)
        except Aborted:
            log.info("checkpoint %d was given up", cut.number)
        except (OSError, ParamServerError) as error:
            self._fail(cut, f" to {self._config.folder}: {error}")
            self._events.add(events.cut_failed(self.schedule.problem), self._shard.global_step)
        except Exception:
            self._fail(cut, ": see the server's log")
            log.exception("checkpoint %d could not be written; training goes on", cut.number)
        else:
            self.schedule.succeed(cut.number)
            self.written_at = self._loop.time()
            self._measurements.checkpoint_seconds.add(self.written_at - began)
            self._measurements.checkpoint_bytes = nbytes
            if self._journal is not None and not self._config.keep_journal:
                self._journal.drop_segments_before(cut.number)
            self._events.add(events.cut_written(cut.number, len(cut.late)), self._shard.global_step)
        finally:
            copying.cancel()
            cut.writing = False
            self.writing = None

    def _fail(self, cut: ShardCut, why: str) -> None:
        self.schedule.fail(cut.number, f"checkpoint {cut.number} could not be written{why}")
        self._measurements.checkpoint_failures += 1

    async def end_writing(self) -> None:
        """Wait for the checkpoint that is being written; it is given up if its cut is not complete."""
        if (writing := self.writing) is not None:
            self.complete.set()
            await asyncio.wait([writing], timeout=_FINISH_TIMEOUT)

    def in_thread(self, work: Callable[..., _Result], *arguments: object) -> asyncio.Future[_Result]:
        """Call a function in the thread that writes checkpoints, one after another."""
        return self._loop.run_in_executor(self._thread, work, *arguments)

    def _to_disk(self, cut: ShardCut, copies: CutCopies, final: bool) -> None:
        """Write a cut. Runs in the thread."""
        shard, shards = cut.state.shard, cut.state.shards
        protect = self.written_by_all if shards > 1 else None
        spare = self._oldest if self._config.keep_journal else None
        self.schedule.write(cut.state, copies.arrays(), copies.late, final=final, protect=protect, spare=spare)
        self.cuts = tuple(retention.cuts(self._config.folder, shard, shards)[-REPORTED_CUTS:])

    async def _completed(self) -> None:
        """Return when the cut is complete, or never will be, and the journal has a segment that follows it."""
        await self.complete.wait()
        if self._segment_begun is not None:
            await self._segment_begun

    def shutdown(self) -> None:
        """End the thread."""
        self._thread.shutdown()
