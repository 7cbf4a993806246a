"""Persistence: writes down what the shard of an executor does, as checkpoints and in a journal.

A checkpoint is a cut (`psserver.core.cuts`) in files. The journal has every message that changed the shard, in the
order of its steps; it begins a segment with each snapshot, so a checkpoint and the segments from its number on give the
shard again. Everything here is called in the event loop of the executor; files are written in threads.
"""

import asyncio
import dataclasses

from psserver.config import StorageConfig
from psserver.core import events
from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import StepResult
from psserver.measurements import Measurements
from psserver.runtime.checkpoint_writer import CheckpointWriter
from psserver.runtime.event_log import EventLog
from psserver.runtime.task_order import TaskOrder
from psserver.storage import records
from psserver.storage.folders import journal_folder
from psserver.storage.journal import Journal
from psserver.storage.journal_segments import list_segments
from psserver.storage.records import Record
from psserver.storage.start import Start
from pswire import messages as ms
from pswire.errors import ParamServerError, Unavailable

#: Messages that change a shard, besides pulls where served weights are kept, and heartbeats that settle something.
_CHANGES = tuple([call.request for call in ms.CALLS if call.change])


class Persistence:
    """The checkpoints and the journal, if there is one, of the present `shard`, whose array tasks are `tasks`.

    `start` is what it started from. Call `begin` first.

    Attributes:
        interrupted: why going back has ended half way; empty if it has not.
    """

    def __init__(
        self,
        config: StorageConfig,
        shard: Shard,
        start: Start,
        tasks: TaskOrder,
        log_of_events: EventLog,
        measurements: Measurements,
    ) -> None:
        self.events, self._measurements = log_of_events, measurements
        self.shard, self.start = shard, start
        self.journal: Journal | None = None
        self.writer = CheckpointWriter(config, shard, tasks, log_of_events, measurements)
        self.interrupted = ""
        self.config = config
        self._loop = asyncio.get_running_loop()
        self._kept_bytes = 0  # of a journal that stays, at the last cut
        if start.state is not None:
            step = shard.global_step
            self.events.keep(events.started(shard.shard, f"checkpoint {start.number}", step), step)

    def begin(self) -> None:
        """Take up the journal, which begins or continues with the present state; call it before the next step."""
        if self.shard.lost:
            return
        oldest = 0
        if self.config.journal:
            folder = journal_folder(self.config.folder, self.shard.shard, self.shard.shards)
            self.journal = Journal(folder, self.shard.identity, self.config.journal_sync, self._measurements.journal)
            self._kept_bytes = self.journal.nbytes if self.config.keep_journal else 0
            segments = list(list_segments(folder)) or [self.shard.cuts.number]
            oldest = segments[0]
            self.journal.begin_segment(segments[-1])
        self.writer.begin(self.shard, self.start.number, self.journal, oldest)

    def continue_from(self, start: Start) -> None:
        """Take the start of a new timeline, which is on disk, in place of the present one."""
        self.start.close()
        self.start, self.interrupted = start, ""
        self.writer.cuts, self.writer.written_by_all = (), start.timeline_cut

    # --- steps ----------------------------------------------------------------------------------------------------

    def admit_change(self, message: ms.Message) -> None:
        """Raise `Unavailable` for a change that could not be written down, before it is made.

        The first change of a provisional run is checked by the shard too, and lets the run be the job's.
        """
        problem = self.interrupted or self._journal_problem
        if problem and isinstance(message, _CHANGES):
            raise Unavailable(f"shard {self.shard.shard} accepts no changes until it can write them: {problem}")
        if self.start.provisional and isinstance(message, _CHANGES):
            self.shard.check(message)
            try:
                self.start.confirm()
            except OSError as error:
                raise Unavailable(f"shard {self.shard.shard} cannot write that its run begins: {error}") from None

    def record(self, message: ms.Message, received: Record | None = None) -> Record | None:
        """The record of a message for the journal, in any thread; None without a journal, or if it changes nothing.

        `received` is the record if the message came as bytes that can be written (`records.received`).
        """
        if self.journal is None or not self._is_change(message):
            return None
        return records.encode(message) if received is None else received

    def write_down(self, message: ms.Message, result: StepResult, record: Record | None) -> None:
        """Write down a message that the shard has taken, and a cut that it has begun before; returns at once."""
        cut, journal = self.shard.cuts.current, self.journal
        if result.began_cut and cut is not None:
            self.writer.schedule.begin_interval(self.shard, self._loop.time())
            if journal is not None:
                self._kept_bytes = journal.nbytes if self.config.keep_journal else 0
                journal.begin_segment(cut.number)
                for _, waiting in cut.waiting:
                    journal.append(records.encode(waiting))
            self.writer.begin_writing(cut, self.written())
        if journal is not None and record is not None:
            journal.append(record)
        if cut is None or cut.complete:
            self.writer.complete.set()
        if isinstance(message, ms.Renew):
            writer = self.writer
            writer.written_by_all = max(writer.written_by_all, min(message.written_by_all, writer.schedule.last))

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
        if self.shard.lost or self.writer.writing is not None:
            return False
        if self.journal is not None and self.journal.nbytes - self._kept_bytes > self.config.journal_limit // 2:
            return True
        return not self.shard.shard and self.writer.schedule.due(self.shard, self._loop.time())

    # --- reports --------------------------------------------------------------------------------------------------

    def explained(self, error: ParamServerError) -> ParamServerError:
        """As `Start.explained`."""
        return self.start.explained(error, self.shard.job)

    def filled_in(self, answer: ms.Answer) -> ms.Answer:
        """The answer, with what only the storage knows if it is a report; why changes wait for the journal, if so."""
        if isinstance(answer, ms.Renewed):
            waiting_for = answer.waiting_for or self._journal_problem
            return dataclasses.replace(answer, waiting_for=waiting_for, written=self.writer.cuts)
        if isinstance(answer, ms.CutReport):
            return self.writer.schedule.filled_in(answer)
        if not isinstance(answer, ms.StatusReport):
            return answer
        storage = dataclasses.replace(
            answer.storage,
            folder=str(self.config.folder),
            last=self.writer.schedule.last,
            age=self._loop.time() - self.writer.written_at,
            problem=self._journal_problem or self.writer.schedule.problem,
            journal=self.journal is not None,
            journal_bytes=0 if self.journal is None else self.journal.nbytes,
        )
        return dataclasses.replace(answer, storage=storage)

    # --- the end --------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Write a last checkpoint, from which the next start continues without loss. Call when no step can follow."""
        await self.writer.end_writing()
        if not self.shard.lost and not self.start.provisional:  # its files have everything
            cut = self.shard.cuts.begin_final()
            if cut is not None:
                self.writer.complete.set()
                await self.writer.write(cut, final=True)
        if self.journal is not None:
            await self.journal.close()
        self.start.close()
        self.writer.shutdown()
