"""The executor of a shard: takes messages from many callers, steps the shard, and gives each caller its answer.

Steps take microseconds and run in the event loop; what takes longer runs in threads, so that the loop goes on
receiving: array tasks, inspections of many bytes, and steps of messages with many entries, beside which no other step
is taken. Independent of gRPC and of encoding.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from time import perf_counter, time_ns
from typing import NamedTuple

from psserver.config import StorageConfig
from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import StepResult, TasksPending
from psserver.core.variables.element_checks import Inspection
from psserver.measurements import JOURNAL, Measurements, Waits
from psserver.runtime.call_times import CallTimes, call_times
from psserver.runtime.compiler import Compiler
from psserver.runtime.event_log import EventLog
from psserver.runtime.persistence import Persistence
from psserver.runtime.task_order import Bundle, TaskOrder
from psserver.runtime.threads import Threads
from psserver.storage.records import Record
from psserver.storage.start import Start
from pswire.errors import InvalidMessage, ParamServerError, TooLarge, Unavailable, UnknownVariable
from pswire.messages import (
    CALLS,
    Allocator,
    Answer,
    Assign,
    Cut,
    Intervene,
    Pulled,
    Push,
    Register,
    Reply,
    Request,
    Restore,
    Restored,
    Status,
    StatusReport,
    Tick,
    Tune,
    entries,
    tensor_bytes,
)

#: Bytes of arrays that a step may inspect in the event loop: one pass that only reads, some 50 us a MiB.
MAX_BYTES_INSPECTED_IN_LOOP = 2 << 20

#: Entries of a message that is stepped in the event loop: some 10 us each.
MAX_ENTRIES_IN_LOOP = 500

log = logging.getLogger(__name__)

_Waiting = asyncio.Future[Answer]

#: The error of calls that a stopping server cannot answer.
STOPPING_ERROR = "the server is stopping: try again when a server is back at this address"


#: Answers that acknowledge no change, so they need not wait for the journal; values are of changes of others.
_REPORTS = tuple([call.answer for call in CALLS if not call.change and call.answer is not Pulled])

#: The reason of a wait by the class of its message.
_REASONS: dict[type, str] = {call.request: call.wait for call in CALLS}


class AnswerTooLarge(TooLarge):
    """The answer may have more values than its caller can accept; nothing was done."""


class _Step(NamedTuple):
    """A step that was taken: its result, its tasks as they are run if they are many, and its record for the journal."""

    result: StepResult
    bundles: list[Bundle] | None
    record: Record | None


def is_large(message: Request | Answer) -> bool:
    """Whether a message has too many entries for the event loop."""
    return entries(message) > MAX_ENTRIES_IN_LOOP


class Executor:
    """Steps a shard, one message at a time, in the order of their arrival. All methods are called in the event loop.

    Nothing else steps the shard; `clock` never goes back. `shard` is replaced by another one when it goes back to a
    checkpoint; `persistence`, if there is one, writes it down. `measurements` has what all this takes.
    """

    def __init__(self, shard: Shard, clock: Callable[[], float], measurements: Measurements | None = None) -> None:
        self.shard = shard
        self.measurements = measurements or Measurements()
        self.persistence: Persistence | None = None
        self.events = EventLog()
        self._clock = clock
        self._tickets = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._traced: dict[int, CallTimes] = {}  # of those that wait, the traced ones
        self._held: dict[int, tuple[Waits, float]] = {}  # calls that the shard has not answered yet, since when
        self._closing = False
        self._tasks = TaskOrder()
        self._threads = Threads(self._tasks)
        self.aside = self._threads.aside
        self._compiler = Compiler(self._threads)
        self._beginning: asyncio.Task[Answer] | None = None  # of a cut

    def persist(self, config: StorageConfig, new_shard: Callable[[], Shard], start: Start) -> None:
        """Write down from now on what the shard does; before its first step (`Persistence`)."""
        self.persistence = Persistence(
            config, new_shard, self.shard, start, self._tasks, self.events, self.measurements
        )
        self.persistence.begin()

    @property
    def borrows_arrays(self) -> bool:
        """Whether arrays of messages are read until the answer, by the journal: they cannot get the answer's values."""
        return self.persistence is not None and self.persistence.journal is not None

    def _is_large(self, message: Request) -> bool:
        """Whether a message is stepped in a thread: for its entries, or since it goes through so many variables."""
        if is_large(message):
            return True
        if len(self.shard.variables) <= MAX_ENTRIES_IN_LOOP:
            return False
        return isinstance(message, Status | Intervene) or self._may_begin_cut(message)

    def _may_begin_cut(self, message: Request) -> bool:
        """Whether a message may begin a cut, or start its copies, which goes through all variables."""
        cuts = self.shard.cuts
        if isinstance(message, Cut):
            number = message.number or cuts.number + 1
            if cuts.current is not None and cuts.current.late:
                return True
        else:
            number = getattr(message, "cut", 0)
        return number > cuts.number and cuts.busy is None and self._clock() >= cuts.not_before

    async def admit(self, message: Request) -> int:
        """The bytes of `message`, whose arrays may have no memory yet, and of its answer. Raises what `step` would."""
        return await self._threads.between_steps(self._admit, message) if is_large(message) else self._admit(message)

    def _admit(self, message: Request) -> int:
        self.shard.check(message)
        return tensor_bytes(message) + self.shard.answer_bytes(message)

    async def step(
        self,
        message: Request,
        most: int | None = None,
        allocator: Allocator | None = None,
        *,
        received: Record | None = None,
    ) -> Answer:
        """The shard's answer, once there is one.

        A caller that is cancelled while its message is inspected has changed nothing. If it is cancelled later, the
        step is still done, and its answer is discarded.

        Args:
            message: its arrays are borrowed until the answer, or for good if the caller is cancelled.
            most: bytes of values that the answer may have.
            allocator: memory for its values; borrowed as long as the message's arrays.
            received: the message's record, of the bytes that came; None: it is encoded for the journal.

        Raises:
            AnswerTooLarge: the answer could have more than `most`; the step was not done.
            Unavailable: the server stops, and the answer would have to wait for other workers.
            ParamServerError: the shard refuses it.
        """
        times = call_times.get()
        if times is not None:
            times.decoded = time_ns()
        large = self._is_large(message)
        if isinstance(message, Register | Tune):
            await self._compiler.compile(message, self.shard.check, large=large)
        if self.persistence is not None:
            if isinstance(message, Restore):
                return await self._restore(self.persistence, message)
            self.persistence.check(message)
        inspection, record, loop = None, received, asyncio.get_running_loop()
        if large:
            if not isinstance(message, Register | Tune):  # which are checked already
                await self._threads.between_steps(self.shard.check, message)
            inspection = await self._threads.inspect(self.shard.inspect, message)
            record = None if self.persistence is None else await self.aside(self.persistence.record, message, received)
        elif tensor_bytes(message) > MAX_BYTES_INSPECTED_IN_LOOP:
            self.shard.check(message)
            inspection = await self._threads.inspect(self.shard.inspect, message)
        if self._tasks.initializes and isinstance(message, Push | Assign):
            # Here, so that no held push needs a value that is not there: every checked step would wait for it.
            changed = message.gradients if isinstance(message, Push) else message.assignments
            await self._tasks.initialized([one.name for one in changed])
        ticket = next(self._tickets)

        def begin(now: float) -> _Step | None:
            """The step; None if it is checked and has to wait for tasks, and nothing was done."""
            if most is not None:
                self._check_answer_size(message, most)
            try:
                step = self._step(ticket, message, now, inspection, allocator, large=large, record=record)
            except TasksPending:
                return None
            if times is not None:
                times.note_step(ticket, step.result.replies)
                self._traced[ticket] = times
            return step

        answer: _Waiting = loop.create_future()
        try:
            if large:
                await asyncio.shield(asyncio.create_task(self._take_step(ticket, message, begin, answer, large=True)))
            elif self._threads.exclusive.locked() or (step := begin(self._clock())) is None:
                await self._take_step(ticket, message, begin, answer)
            else:
                self._waiting[ticket] = answer
                self._complete(message, step)
            if ticket in self._waiting:
                self._hold(ticket, message)
            if self._closing:
                self.close()
            if self.persistence is None:
                completed = await answer
                return self._completed(completed) if isinstance(completed, StatusReport) else completed
            if not isinstance(message, Cut | Status):
                self._begin_due_cut()
            return self._completed(self.persistence.completed(await answer))
        finally:
            answer.cancel()
            self._waiting.pop(ticket, None)
            if times is not None:
                self._traced.pop(ticket, None)
                times.answered = time_ns() if times.decided else 0
            if ticket in self._held:
                self._release(ticket)

    def explained(self, error: ParamServerError) -> ParamServerError:
        """The error of a message, with what this server continues from where that may be the reason."""
        return error if self.persistence is None else self.persistence.explained(error)

    def _hold(self, ticket: int, message: Request) -> None:
        """Count a call that waits for a later step."""
        reason = _REASONS[type(message)]
        waits = self.measurements.waits[reason]
        waits.begin()
        self._held[ticket] = waits, self._clock()

    def _release(self, ticket: int) -> None:
        """Count the end of its wait."""
        waits, since = self._held.pop(ticket)
        waits.end(self._clock() - since)

    async def _take_step(
        self,
        ticket: int,
        message: Request,
        begin: Callable[[float], _Step | None],
        answer: _Waiting,
        *,
        large: bool = False,
    ) -> None:
        """Take a step, in a thread if it is `large`, while no other one is taken, so that no tasks are added.

        A checked step (`psserver.core.variables.array_tasks`) waits until all tasks of its variables have been run.
        """
        async with self._threads.exclusive:
            while True:
                now = self._clock()
                step = await self._threads.in_step(begin, now) if large else begin(now)
                if step is not None:
                    break
                await self._tasks.wait(self.shard.checkable(message))
            if not answer.cancelled():
                self._waiting[ticket] = answer
            self._complete(message, step)

    def _completed(self, answer: Answer) -> Answer:
        """The answer, with what only this server knows if it is a status."""
        return self.events.completed(answer) if isinstance(answer, StatusReport) else answer

    def tick(self) -> None:
        """Send the shard a tick, and begin a cut if one is due; skipped while another step waits or is in a thread."""
        if self._threads.exclusive.locked():
            return
        self._send(self.shard.due(self._clock()))
        self.shard.cuts.drop_unused()
        self._begin_due_cut()

    def _begin_due_cut(self) -> None:
        """Begin a cut if one is due; that of a shard with many variables in a thread."""
        if self.persistence is None or not self.persistence.cut_is_due():
            return
        cut = Cut()
        if not self._is_large(cut):
            self._send(cut)
        elif self._beginning is None or self._beginning.done():
            self._beginning = asyncio.create_task(self.step(cut))
            self._beginning.add_done_callback(_log_refusal)

    def _send(self, message: Tick | Cut) -> None:
        """Step the shard by a message of this server; a tick or cut that cannot be taken now comes again later."""
        if self._threads.exclusive.locked():
            return
        with suppress(TasksPending):
            self._complete(message, self._step(0, message, self._clock()))

    def _step(
        self,
        ticket: int,
        message: Request | Tick | Cut,
        now: float,
        inspection: Inspection | None = None,
        allocator: Allocator | None = None,
        *,
        large: bool = False,
        record: Record | None = None,
    ) -> _Step:
        """Step the shard; call `_complete` before the next step. Raises what `Shard.step` does."""
        settled, began = self._tasks.idle, perf_counter()
        step = partial(self.shard.step, ticket, message, now, inspection=inspection, allocator=allocator)
        try:
            result = step(settled=settled)
        except TasksPending:
            if not self._tasks.has_run(self.shard.checkable(message)):
                raise
            result = step(settled=True)
        if result.began_cut:
            self.shard.cuts.pause(now, perf_counter() - began)
        bundles = self._tasks.bundles(result.tasks) if large and result.tasks else None
        if self.persistence is not None and not large:
            record = self.persistence.record(message, record)
        return _Step(result, bundles, record)

    def close(self) -> None:
        """Answer all waiting calls, and later ones that would have to wait, with `Unavailable`."""
        self._closing = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Unavailable(STOPPING_ERROR))
        self._waiting.clear()

    async def shutdown(self) -> None:
        """Wait for all tasks, write the state down, and end the threads; call when no step can follow."""
        if self._beginning is not None:
            await asyncio.wait([self._beginning])
        await self._tasks.wait()
        if self.persistence is not None:
            await self.persistence.finish()
        await self._tasks.shutdown()
        self._threads.shutdown()

    async def _restore(self, persistence: Persistence, message: Restore) -> Restored:
        """Go back to a checkpoint, unless the shard follows this timeline already; waiting calls are to be repeated.

        Workers that are in quarantine stay so: their pushes would spoil the state before they are put into it again.
        """
        self.shard.check_timeline(message)
        if message.timeline > self.shard.timeline:
            async with self._threads.exclusive:  # no step is taken meanwhile
                if message.timeline > self.shard.timeline:
                    before, shard = self.shard, await persistence.go_back(message, self._clock())
                    await self._tasks.wait()
                    for answer in self._waiting.values():
                        if not answer.done():
                            answer.set_exception(Unavailable(f"this shard went back to checkpoint {message.cut}"))
                    self._waiting.clear()
                    self.shard = persistence.shard = shard
                    persistence.begin()
                    for change in shard.interventions.quarantines_as_in(before.interventions):
                        self._complete(change, self._step(0, change, self._clock()))
        return await persistence.restored()

    def _check_answer_size(self, message: Request, most: int) -> None:
        with suppress(InvalidMessage, UnknownVariable):  # the step refuses the message, perhaps for another reason
            nbytes = self.shard.answer_bytes(message, at_once=True)
            if nbytes > most:
                self.shard.check(message)
                raise AnswerTooLarge(
                    f"the answer to this {type(message).__name__} would have {nbytes:,} bytes of values, but a single "
                    f"call carries {most:,}: use Transfer (nothing was done)"
                )

    def _complete(self, message: Request | Tick | Cut, step: _Step) -> None:
        """Write down a step, log its events, and give the replies to their callers when its tasks are done."""
        result = step.result
        if self.persistence is not None:
            self.persistence.note(message, result, step.record)
        for event in result.events:
            self.events.add(event, self.shard.global_step)
        replies = [(self._waiting.pop(reply.ticket, None), reply) for reply in result.replies]
        if self._traced:
            for reply in result.replies:
                if reply.ticket in self._traced:
                    self._traced[reply.ticket].note_decision()
        if self._held:
            for reply in result.replies:
                if reply.ticket in self._held:
                    self._release(reply.ticket)
        try:
            tasks = self._tasks
            in_progress = tasks.add(result.tasks) if step.bundles is None else tasks.add_bundles(step.bundles)
        except Exception as fault:
            if not replies:
                raise
            _answer(replies, fault)
            return
        written = None
        if self.persistence is not None and any(not isinstance(one.answer, _REPORTS) for _, one in replies):
            written = self.persistence.written()  # also for values, which have changes that others have made
            if written is not None:
                self._measure_journal(written)
        if in_progress is None and written is None:
            _answer(replies, None)
        elif replies:
            waits = [one for one in (in_progress, written) if one is not None]
            ends = waits[0] if len(waits) == 1 else asyncio.gather(*waits)
            ends.add_done_callback(lambda end: _answer(replies, end.exception()))

    def _measure_journal(self, written: asyncio.Future[None]) -> None:
        waits, loop = self.measurements.waits[JOURNAL], asyncio.get_running_loop()
        waits.begin()
        began = loop.time()
        written.add_done_callback(lambda _: waits.end(loop.time() - began))


def _log_refusal(beginning: asyncio.Task[Answer]) -> None:
    if not beginning.cancelled() and (error := beginning.exception()) is not None:
        log.warning("a checkpoint could not begin: %s", error)


def _answer(replies: Iterable[tuple[_Waiting | None, Reply]], fault: BaseException | None) -> None:
    for answer, reply in replies:
        if answer is None or answer.done():
            continue
        if fault is not None:  # tasks cannot fail; if one does, it must not appear to have succeeded
            answer.set_exception(fault)
        elif isinstance(reply.answer, ParamServerError):
            answer.set_exception(reply.answer)
        else:
            answer.set_result(reply.answer)
