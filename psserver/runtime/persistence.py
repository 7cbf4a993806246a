"""Persistence: writes down what the shard of an executor does, as checkpoints and in a journal.

A checkpoint is a cut (`psserver.core.cuts`) in files. The journal has every message that changed the shard, in the
order of its steps; it begins a segment with each snapshot, so a checkpoint and the segments from its number on give the
shard again. Everything here is called in the event loop of the executor; files are written in threads.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from psserver.config import StorageConfig
from psserver.core import events
from psserver.core.cuts.shard_cut import ShardCut
from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import StepResult
from psserver.measurements import Measurements
from psserver.runtime.cut_copies import Aborted, CutCopies
from psserver.runtime.event_log import EventLog
from psserver.runtime.task_order import TaskOrder
from psserver.storage import records, retention
from psserver.storage.checkpoint_schedule import CheckpointSchedule
from psserver.storage.folders import journal_folder
from psserver.storage.journal import Journal
from psserver.storage.own_start import start_at
from psserver.storage.records import Record
from psserver.storage.segments import list_segments
from psserver.storage.start import Start
from pswire import messages as ms
from pswire.errors import InvalidMessage, ParamServerError, StorageError, Unavailable, WrongShard

#: Messages that change a shard, besides pulls where served weights are kept, and heartbeats that settle something.
_CHANGES = tuple([call.request for call in ms.CALLS if call.change])

#: Seconds that a stopping server waits for a checkpoint that is being written.
_FINISH_TIMEOUT = 600.0

#: The newest cuts on disk that heartbeats report, at most.
REPORTED_CUTS = 16

log = logging.getLogger(__name__)


class Persistence:
    """The checkpoints and the journal, if there is one, of the present `shard`, whose array tasks are `tasks`.

    `new_shard` makes one without state, and `start` is what the present one started from. Call `begin` first.
    """

    def __init__(
        self,
        config: StorageConfig,
        new_shard: Callable[[], Shard],
        shard: Shard,
        start: Start,
        tasks: TaskOrder,
        log_of_events: EventLog,
        measurements: Measurements,
    ) -> None:
        self._events, self._measurements = log_of_events, measurements
        self.shard, self._start, self._new_shard = shard, start, new_shard
        self.journal: Journal | None = None
        self._writer = CheckpointSchedule(config.folder, config.checkpoint_every, config.keep)
        self._unusable: set[int] = set()  # cuts that are damaged
        self._cuts: tuple[int, ...] = ()  # the newest on disk; set by the thread
        self._written_by_all = 0  # the newest cut that all shards are known to have written; set by the event loop
        self._interrupted = ""  # why going back has ended half way
        self._config, self._tasks = config, tasks
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="psserver-checkpoint")
        self._loop = asyncio.get_running_loop()
        self._writing: asyncio.Task[None] | None = None
        self._complete = asyncio.Event()  # the cut that is written is complete, or will never be
        self._written_at = self._loop.time()
        self._kept_bytes = self._oldest = 0  # of the journal that stays: its bytes at the last cut, its first segment
        self._segment_begun: asyncio.Future[None] | None = None
        if start.state is not None:
            step = shard.global_step
            self._events.keep(events.started(shard.shard, f"checkpoint {start.number}", step), step)

    def begin(self) -> None:
        """Take up the journal, which begins or continues with the present state; call it before the next step."""
        if self.shard.lost:
            return
        self._writer.last = self._start.number
        self._writer.begin_interval(self.shard, self._loop.time())
        if self._config.journal:
            folder = journal_folder(self._config.folder, self.shard.shard, self.shard.shards)
            self.journal = Journal(folder, self.shard.identity, self._config.journal_sync, self._measurements.journal)
            self._kept_bytes = self.journal.nbytes if self._config.keep_journal else 0
            segments = list(list_segments(folder)) or [self.shard.cuts.number]
            self._oldest = segments[0]
            self.journal.begin_segment(segments[-1])

    async def go_back(self, message: ms.Restore, now: float) -> Shard:
        """A shard that begins the timeline of this message from its cut; durable. The present one takes no more steps.

        Raises `WrongShard` if the server was told to fail instead, `InvalidMessage` if the cut is not there or damaged,
        after which it is not offered again, and `Unavailable` if the beginning cannot be written: try again.
        """
        config, present = self._config, self.shard
        if config.on_lost_state != "rollback":
            raise WrongShard(
                f"shard {present.shard} does not go back to checkpoint {message.cut}, because it was started with "
                f"--on-lost-state {config.on_lost_state}: what came after that checkpoint would be lost"
            )
        await self._end_writing()
        in_thread = partial(self._loop.run_in_executor, self._thread)
        at, shard = (present.shard, present.shards), self._new_shard()
        try:
            start = await in_thread(start_at, config.folder, message.timeline, message.cut, *at)
            start.restore(shard, now)
        except StorageError as error:
            self._unusable.add(message.cut)
            log.error("shard %d cannot go back to checkpoint %d: %s", present.shard, message.cut, error)
            raise InvalidMessage(f"shard {present.shard} cannot go back to checkpoint {message.cut}: {error}") from None
        if self.journal is not None:
            await self.journal.close()
        try:
            start.notes += await in_thread(partial(start.begin, shard, journal=config.journal))
        except (OSError, StorageError) as error:
            self._interrupted = f"shard {present.shard} is going back to checkpoint {message.cut}, but cannot: {error}"
            log.error("%s", self._interrupted)
            raise Unavailable(self._interrupted) from None
        self._start.close()
        self._start, self._interrupted = start, ""
        self._cuts, self._written_by_all = (), message.cut
        for note in start.notes:
            log.warning("%s", note)
        self._events.add(events.restored(shard.shard, message.cut, message.timeline), shard.global_step)
        return shard

    async def restored(self) -> ms.Restored:
        """The timeline in force, and the cuts that the shard could go back to."""
        shard, shards = self.shard.shard, self.shard.shards
        found = await self._loop.run_in_executor(None, retention.cuts, self._config.folder, shard, shards)
        usable = [number for number in found if number not in self._unusable]
        return ms.Restored(
            timeline=self.shard.timeline, cut=self._start.timeline_cut, lost=self.shard.lost, cuts=tuple(usable)
        )

    # --- steps ----------------------------------------------------------------------------------------------------

    def check(self, message: ms.Message) -> None:
        """Raise `Unavailable` for a change that could not be written down, before it is made.

        The first change of a provisional run is checked by the shard too, and lets the run be the job's.
        """
        problem = self._interrupted or self._journal_problem
        if problem and isinstance(message, _CHANGES):
            raise Unavailable(f"shard {self.shard.shard} accepts no changes until it can write them: {problem}")
        if self._start.provisional and isinstance(message, _CHANGES):
            self.shard.check(message)
            try:
                self._start.confirm()
            except OSError as error:
                raise Unavailable(f"shard {self.shard.shard} cannot write that its run begins: {error}") from None

    def record(self, message: ms.Message, received: Record | None = None) -> Record | None:
        """The record of a message for the journal, in any thread; None without a journal, or if it changes nothing.

        `received` is the record if the message came as bytes that can be written (`records.received`).
        """
        if self.journal is None or not self._is_change(message):
            return None
        return records.encode(message) if received is None else received

    def note(self, message: ms.Message, result: StepResult, record: Record | None) -> None:
        """Write down a message that the shard has taken, and a cut that it has begun before; returns at once."""
        cut, journal = self.shard.cuts.current, self.journal
        if result.began_cut and cut is not None:
            self._writer.begin_interval(self.shard, self._loop.time())
            if journal is not None:
                self._kept_bytes = journal.nbytes if self._config.keep_journal else 0
                journal.begin_segment(cut.number)
                for _, waiting in cut.waiting:
                    journal.append(records.encode(waiting))
            self._write(cut)
        if journal is not None and record is not None:
            journal.append(record)
        if cut is None or cut.complete:
            self._complete.set()
        if isinstance(message, ms.Renew):
            self._written_by_all = max(self._written_by_all, min(message.written_by_all, self._writer.last))

    @property
    def _journal_problem(self) -> str:
        return "" if self.journal is None else self.journal.problem

    def written(self) -> asyncio.Future[None] | None:
        """A future that ends when all changes so far are as safe as promised; None if they are."""
        return None if self.journal is None else self.journal.written()

    def _is_change(self, message: ms.Message) -> bool:
        match message:
            case ms.Renew():
                return bool(message.idle or message.settled or message.half_pushes)
            case ms.Register():
                return not message.dry_run
            case ms.Tick():
                return message != ms.Tick()
            case ms.Pull():
                # one that waits for changes of workers that are gone settles these
                return (self.shard.keeps_served_weights and not message.of_cut) or bool(message.after)
            case _:
                return isinstance(message, _CHANGES)

    # --- cuts -----------------------------------------------------------------------------------------------------

    def cut_is_due(self) -> bool:
        """True if this shard should begin a cut: shard 0 by its interval, any shard for a large journal."""
        if self.shard.lost or self._writing is not None:
            return False
        if self.journal is not None and self.journal.nbytes - self._kept_bytes > self._config.journal_limit // 2:
            return True
        return not self.shard.shard and self._writer.due(self.shard, self._loop.time())

    def _write(self, cut: ShardCut) -> None:
        self._segment_begun = self.written()
        self._complete.clear()
        self._writing = self._loop.create_task(self._written_checkpoint(cut, final=False))

    async def _written_checkpoint(self, cut: ShardCut, *, final: bool) -> None:
        """Write a cut, and drop journal segments that it replaces. Raises nothing: training goes on without it."""
        began, nbytes = self._loop.time(), cut.nbytes
        copies = CutCopies(cut, self._tasks)
        copying = self._loop.create_task(copies.make(self._completed))
        try:
            await self._loop.run_in_executor(self._thread, self._to_disk, cut, copies, final)
        except Aborted:
            log.info("checkpoint %d was given up", cut.number)
        except (OSError, ParamServerError) as error:
            self._fail(cut, f" to {self._config.folder}: {error}")
            self._events.add(events.cut_failed(self._writer.problem), self.shard.global_step)
        except Exception:
            self._fail(cut, ": see the server's log")
            log.exception("checkpoint %d could not be written; training goes on", cut.number)
        else:
            self._writer.succeed(cut.number)
            self._written_at = self._loop.time()
            self._measurements.checkpoint_seconds.add(self._written_at - began)
            self._measurements.checkpoint_bytes = nbytes
            if self.journal is not None and not self._config.keep_journal:
                self.journal.drop_segments_before(cut.number)
            self._events.add(events.cut_written(cut.number, len(cut.late)), self.shard.global_step)
        finally:
            copying.cancel()
            cut.writing = False
            self._writing = None

    def _fail(self, cut: ShardCut, why: str) -> None:
        self._writer.fail(cut.number, f"checkpoint {cut.number} could not be written{why}")
        self._measurements.checkpoint_failures += 1

    async def _end_writing(self) -> None:
        """Wait for the checkpoint that is being written; it is given up if its cut is not complete."""
        if (writing := self._writing) is not None:
            self._complete.set()
            await asyncio.wait([writing], timeout=_FINISH_TIMEOUT)

    def _to_disk(self, cut: ShardCut, copies: CutCopies, final: bool) -> None:
        """Write a cut. Runs in the thread."""
        shard, shards = cut.state.shard, cut.state.shards
        protect = self._written_by_all if shards > 1 else None
        spare = self._oldest if self._config.keep_journal else None
        self._writer.write(cut.state, copies.arrays(), copies.late, final=final, protect=protect, spare=spare)
        self._cuts = tuple(retention.cuts(self._config.folder, shard, shards)[-REPORTED_CUTS:])

    async def _completed(self) -> None:
        """Return when the cut is complete, or never will be, and the journal has a segment that follows it."""
        await self._complete.wait()
        if self._segment_begun is not None:
            await self._segment_begun

    # --- reports --------------------------------------------------------------------------------------------------

    def explained(self, error: ParamServerError) -> ParamServerError:
        """As `Start.explained`."""
        return self._start.explained(error, self.shard.job)

    def completed(self, answer: ms.Answer) -> ms.Answer:
        """The answer, with what only the storage knows if it is a report; why changes wait for the journal, if so."""
        if isinstance(answer, ms.Renewed):
            waiting_for = answer.waiting_for or self._journal_problem
            return dataclasses.replace(answer, waiting_for=waiting_for, written=self._cuts)
        if isinstance(answer, ms.CutReport):
            return self._writer.completed(answer)
        if not isinstance(answer, ms.StatusReport):
            return answer
        storage = dataclasses.replace(
            answer.storage,
            folder=str(self._config.folder),
            last=self._writer.last,
            age=self._loop.time() - self._written_at,
            problem=self._journal_problem or self._writer.problem,
            journal=self.journal is not None,
            journal_bytes=0 if self.journal is None else self.journal.nbytes,
        )
        return dataclasses.replace(answer, storage=storage)

    # --- the end --------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Write a last checkpoint, from which the next start continues without loss. Call when no step can follow."""
        await self._end_writing()
        if not self.shard.lost and not self._start.provisional:  # its files have everything
            cut = self.shard.cuts.begin_final()
            if cut is not None:
                self._complete.set()
                await self._written_checkpoint(cut, final=True)
        if self.journal is not None:
            await self.journal.close()
        self._start.close()
        self._thread.shutdown()
