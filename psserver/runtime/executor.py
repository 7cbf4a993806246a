"""The executor of a shard: takes messages from many callers, steps the shard, and gives each caller its answer.

Steps take microseconds and run in the event loop; what takes longer runs in threads, so that the loop goes on
receiving. Independent of gRPC and of encoding.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from psserver.config import StorageConfig
from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import StepResult, TasksPending
from psserver.core.variables.element_checks import Inspection
from psserver.runtime.persistence import Persistence
from psserver.runtime.task_order import TaskOrder
from psserver.storage.start import Start
from pswire.errors import InvalidMessage, ParamServerError, TooLarge, Unavailable, UnknownVariable
from pswire.messages import (
    Allocator,
    Answer,
    Assign,
    Cut,
    CutReport,
    Push,
    Register,
    Renewed,
    Reply,
    Request,
    Restore,
    Restored,
    Status,
    StatusReport,
    Tick,
    Tune,
    tensor_bytes,
)
from pswire.optimizers import numba_compiler, rule_for
from pswire.optimizers.numba_compiler import Loop

#: Bytes of arrays that a step may inspect in the event loop: one pass that only reads, some 50 us a MiB.
MAX_BYTES_INSPECTED_IN_LOOP = 2 << 20

log = logging.getLogger(__name__)

_Waiting = asyncio.Future[Answer]

#: The error of calls that a stopping server cannot answer.
STOPPING_ERROR = "the server is stopping: try again when a server is back at this address"


#: Answers that promise nothing, and so wait for no journal.
_REPORTS = (Renewed, CutReport, StatusReport)


class AnswerTooLarge(TooLarge):
    """The answer may have more values than its caller can accept; nothing was done."""


class Executor:
    """Steps a shard, one message at a time, in the order of their arrival. All methods are called in the event loop.

    Nothing else steps the shard; `clock` never goes back. `shard` is replaced by another one when it goes back to a
    checkpoint; `persistence`, if there is one, writes it down.
    """

    def __init__(self, shard: Shard, clock: Callable[[], float]) -> None:
        self.shard = shard
        self.persistence: Persistence | None = None
        self._clock = clock
        self._tickets = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._closing = False
        self._inspectors = ThreadPoolExecutor(max_workers=2, thread_name_prefix="psserver-inspect")
        self._tasks = TaskOrder()
        self._guarded = asyncio.Lock()
        self._compiling = asyncio.Lock()
        self._compiled: set[Loop] = set()

    def persist(self, config: StorageConfig, new_shard: Callable[[], Shard], start: Start) -> None:
        """Write down from now on what the shard does; before its first step (`Persistence`)."""
        self.persistence = Persistence(config, new_shard, self.shard, start, self._tasks)
        self.persistence.begin()

    @property
    def borrows_arrays(self) -> bool:
        """Whether arrays of messages are read until the answer, by the journal: they cannot get the answer's values."""
        return self.persistence is not None and self.persistence.journal is not None

    def admit(self, message: Request) -> int:
        """The bytes of `message`, whose arrays may have no memory yet, and of its answer. Raises what `step` would."""
        self.shard.check(message)
        return tensor_bytes(message) + self.shard.answer_bytes(message)

    async def step(self, message: Request, most: int | None = None, allocator: Allocator | None = None) -> Answer:
        """The shard's answer, once there is one.

        A caller that is cancelled while its message is inspected has changed nothing. If it is cancelled later, the
        step is still done, and its answer is discarded.

        Args:
            message: its arrays are borrowed until the answer, or for good if the caller is cancelled.
            most: bytes of values that the answer may have.
            allocator: memory for its values; borrowed as long as the message's arrays.

        Raises:
            AnswerTooLarge: the answer could have more than `most`; the step was not done.
            Unavailable: the server stops, and the answer would have to wait for other workers.
            ParamServerError: the shard refuses it.
        """
        if isinstance(message, Register | Tune):
            await self._compile(message)
        if self.persistence is not None:
            if isinstance(message, Restore):
                return await self._restore(self.persistence, message)
            self.persistence.check(message)
        inspection = None
        if tensor_bytes(message) > MAX_BYTES_INSPECTED_IN_LOOP:
            self.shard.check(message)
            loop = asyncio.get_running_loop()
            inspection = await loop.run_in_executor(self._inspectors, self.shard.inspect, message)
        if self._tasks.initializes and isinstance(message, Push | Assign):
            # Here, so that no held push needs a value that is not there: every guarded step would wait for it.
            changed = message.gradients if isinstance(message, Push) else message.assignments
            await self._tasks.initialized([one.name for one in changed])
        ticket = next(self._tickets)

        def begin() -> StepResult | None:
            """The result; None if the step is guarded and has to wait for tasks, and nothing was done."""
            if most is not None:
                self._check_answer_size(message, most)
            try:
                return self._step(ticket, message, inspection, allocator)
            except TasksPending:
                return None

        result = None if self._guarded.locked() else begin()
        if result is None:
            # A guarded step (`psserver.core.variables.array_tasks`) waits until all tasks of its variables have been
            # run. Meanwhile no other step is taken, so no tasks are added. It computes in the event loop.
            async with self._guarded:
                while (result := begin()) is None:
                    await self._tasks.wait(self.shard.guardable(message))
        answer: _Waiting = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = answer
        try:
            self._complete(result)
            if self._closing:
                self.close()
            if self.persistence is None:
                return await answer
            if not isinstance(message, Cut | Status) and self.persistence.cut_is_due():
                self._send(Cut())
            return self.persistence.completed(await answer)
        finally:
            answer.cancel()
            self._waiting.pop(ticket, None)

    def tick(self) -> None:
        """Send the shard a tick, and begin a cut if one is due; skipped while a guarded step waits for tasks."""
        self._send(self.shard.due(self._clock()))
        self.shard.cuts.tick()
        if self.persistence is not None and self.persistence.cut_is_due():
            self._send(Cut())

    def _send(self, message: Tick | Cut) -> None:
        """Step the shard by a message of this server; a tick or cut that cannot be taken now comes again later."""
        if self._guarded.locked():
            return
        with suppress(TasksPending):
            self._complete(self._step(0, message))

    def _step(
        self,
        ticket: int,
        message: Request | Tick | Cut,
        inspection: Inspection | None = None,
        allocator: Allocator | None = None,
    ) -> StepResult:
        """Step the shard, and write the message down. Raises what `Shard.step` does."""
        now, settled = self._clock(), self._tasks.idle
        step = partial(self.shard.step, ticket, message, now, inspection=inspection, allocator=allocator)
        try:
            result = step(settled=settled)
        except TasksPending:
            if not self._tasks.has_run(self.shard.guardable(message)):
                raise
            result = step(settled=True)
        if self.persistence is not None:
            self.persistence.note(message, result)
        return result

    def close(self) -> None:
        """Answer all waiting calls, and later ones that would have to wait, with `Unavailable`."""
        self._closing = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Unavailable(STOPPING_ERROR))
        self._waiting.clear()

    async def shutdown(self) -> None:
        """Wait for all tasks, write the state down, and end the threads; call when no step can follow."""
        await self._tasks.wait()
        if self.persistence is not None:
            await self.persistence.finish()
        await self._tasks.shutdown()
        self._inspectors.shutdown()

    async def _restore(self, persistence: Persistence, message: Restore) -> Restored:
        """Go back to a checkpoint, unless the shard follows this timeline already; waiting calls are to be repeated."""
        if message.timeline > self.shard.timeline:
            async with self._guarded:  # no step is taken meanwhile
                if message.timeline > self.shard.timeline:
                    shard = await persistence.go_back(message, self._clock())
                    await self._tasks.wait()
                    for answer in self._waiting.values():
                        if not answer.done():
                            answer.set_exception(Unavailable(f"this shard went back to checkpoint {message.cut}"))
                    self._waiting.clear()
                    self.shard = persistence.shard = shard
                    persistence.begin()
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

    async def _compile(self, message: Register | Tune) -> None:
        """Compile the loops of a message's optimizers in a thread, unless the shard refuses it; other calls go on."""
        self.shard.check(message)
        specs = [message.optimizer] if isinstance(message, Tune) else [one.optimizer for one in message.declarations]
        loops = {loop for spec in specs if spec is not None and (loop := rule_for(spec).loop) is not None}
        if loops <= self._compiled:
            return
        async with self._compiling:
            for loop in loops - self._compiled:
                await asyncio.get_running_loop().run_in_executor(self._inspectors, numba_compiler.machine_code, loop)
                self._compiled.add(loop)

    def _complete(self, result: StepResult) -> None:
        """Log the events of a step, and give the replies to their callers when its tasks are done."""
        for event in result.events:
            log.log(logging.WARNING if event.warning else logging.INFO, "%s", event.text)
        replies = [(self._waiting.pop(reply.ticket, None), reply) for reply in result.replies]
        try:
            in_progress = self._tasks.add(result.tasks)
        except Exception as fault:
            if not replies:
                raise
            _answer(replies, fault)
            return
        written = None
        if self.persistence is not None and any(not isinstance(one.answer, _REPORTS) for _, one in replies):
            written = self.persistence.written()  # also for values, which have changes that others have made
        if in_progress is None and written is None:
            _answer(replies, None)
        elif replies:
            waits = [one for one in (in_progress, written) if one is not None]
            ends = waits[0] if len(waits) == 1 else asyncio.gather(*waits)
            ends.add_done_callback(lambda end: _answer(replies, end.exception()))


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
