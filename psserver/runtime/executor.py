"""The one way to a shard: takes messages of many callers, and gives each its answer when it comes.

The event loop is what keeps steps apart: a step of the shard takes microseconds, and is taken in the loop. What it
leaves to be done to arrays (`psserver.core.array_tasks`) is done at once when it is little, and otherwise in threads,
so that
the loop goes on receiving, and other variables are served while a large one is updated; a very large one is divided
among the threads. What is compiled for an optimizer is compiled in a thread too, before it is registered. No lock is
held over the store: the tasks of one variable are a chain, in the order of their steps, and nothing else touches its
arrays. All methods are called in the loop. What a step has to tell a person goes to the log. Knows nothing of gRPC or
bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from psserver.core.array_tasks import ArrayTask, StepResult, TasksPending, run, run_parts, stages
from psserver.core.members.membership import JobEnd
from psserver.core.rules import kernels, loop_name
from psserver.core.shard import Shard
from psserver.core.variables.element_checks import Magnitudes
from pswire.errors import InvalidMessage, ParamServerError, TooLarge, Unavailable, UnknownVariable
from pswire.messages import Answer, Register, Reply, Request, Tick, Tune
from pswire.messages.sizes import Allocator, tensor_bytes
from pswire.system.host import cores

#: Bytes that may be gone through on the event loop: some 100 us with the costliest rule.
SMALL = 256 << 10

#: Bytes that may be looked at there: one pass over them that only reads, some 50 us a MiB. A thread costs as much.
GLANCED_AT = 2 << 20

#: What a task costs besides, as bytes: the calls of a rule on a few elements.
A_TASK = 4 << 10

#: Threads for what is larger, and for looking at it: numpy is in them without the interpreter's lock. More than there
#: are cores would only take the lock, and the cache, away from each other.
THREADS, LOOKING = min(max(2, cores()), 4), 2

#: Bytes of one variable's tasks from which on all threads divide them among each other: some 2 ms of a rule's.
DIVIDED = 4 << 20

#: Elements that a thread takes at a time: it does all tasks to them before the next, and finds them in the cache. Fewer
#: are not worth the calls, of more there is too little cache.
STRETCH = 1 << 18

#: Stretches after which other variables have their turn: some milliseconds.
ROUND = 16

log = logging.getLogger(__name__)

_Waiting = asyncio.Future[Answer]
_Jobs = list[asyncio.Future[None]]

#: What a caller hears when the server stops before it could answer.
STOPPING = "the server is stopping: try again when one is back at this address"


class AnswerTooLarge(TooLarge):
    """An answer with more values than its caller can take at once; nothing was done."""


@dataclass(slots=True)
class _Call:
    """The arguments of a step."""

    ticket: int
    message: Request | Tick
    most: int | None = None
    inspected: Magnitudes | None = None
    allocator: Allocator | None = None


class Executor:
    """Lets messages to the shard, one at a time and in the order of their coming.

    Args:
        shard: nobody else may use it.
        clock: seconds, never going back.
    """

    def __init__(self, shard: Shard, clock: Callable[[], float]) -> None:
        self._shard = shard
        self._clock = clock
        self._tickets = itertools.count(1)
        self._parked: dict[int, _Waiting] = {}
        self._closing = False
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="psserver-shard")
        self._looking = ThreadPoolExecutor(max_workers=LOOKING, thread_name_prefix="psserver-look")
        self._chains = _TaskOrder(self._threads)
        self._turns = asyncio.Lock()
        self._compiling = asyncio.Lock()
        self._compiled: set[str] = set()

    def admit(self, message: Request) -> int:
        """The bytes that `message`, whose arrays may still be hollow, will bring and take away.

        Raises:
            ParamServerError: the shard will not take it.
        """
        self._shard.check(message)
        return tensor_bytes(message) + self._outgoing(message)

    async def step(
        self, message: Request, most: int | None = None, allocator: Allocator | None = None, *, admitted: bool = False
    ) -> Answer:
        """The shard's answer; waits until the shard gives it.

        A caller that is cancelled while its message is looked at has changed nothing; one that is cancelled later is
        forgotten, the step is not.

        Args:
            message: what is said; its arrays are borrowed until the answer, or if the caller is cancelled for good.
            most: bytes of values that the answer may have.
            allocator: memory for its values; borrowed as long as the message's arrays.
            admitted: `admit` has had no objection.

        Raises:
            AnswerTooLarge: the answer could have more than `most`; the step was not done.
            Unavailable: the server stops, and the answer would have to wait for others.
            ParamServerError: the shard's refusal.
        """
        if isinstance(message, Register | Tune):
            await self._compile(message)
        inspected = None
        if tensor_bytes(message) > GLANCED_AT:
            if not admitted:
                self._shard.check(message)
            inspected = await asyncio.get_running_loop().run_in_executor(self._looking, self._shard.inspect, message)
        ticket = next(self._tickets)
        call = _Call(ticket, message, most, inspected, allocator)
        work = self._begin(call) or await self._in_turn(call)
        if len(work.replies) == 1 and work.replies[0].ticket == ticket and self._chains.done_at_once(work.tasks):
            self._log(work)
            return _given(work.replies[0])
        answer: _Waiting = asyncio.get_running_loop().create_future()
        self._parked[ticket] = answer
        try:
            self._release(work)
            if self._closing:
                self.close()
            return await answer
        finally:
            answer.cancel()
            self._parked.pop(ticket, None)

    def tick(self) -> None:
        """Lets the shard see that time passes; if a guarded step waits for tasks, the next tick does."""
        work = self._begin(_Call(0, Tick()))
        if work is not None:
            self._release(work)

    @property
    def job_end(self) -> JobEnd | None:
        """As `Shard.job_end`, by the clock."""
        return self._shard.job_end

    def close(self) -> None:
        """Answers who waits for others with `Unavailable`, and from now on whoever would have to wait."""
        self._closing = True
        for answer in self._parked.values():
            if not answer.done():
                answer.set_exception(Unavailable(STOPPING))
        self._parked.clear()

    async def shutdown(self) -> None:
        """Waits until all that was decided is done, and ends the threads; call when no step is under way."""
        await self._chains.ended()
        self._threads.shutdown()
        self._looking.shutdown()

    # --- one step -------------------------------------------------------------------------------------------------

    def _begin(self, call: _Call, *, in_turn: bool = False) -> StepResult | None:
        """Takes a step; None: it has to wait for its turn, and nothing was done."""
        if self._turns.locked() and not in_turn:
            return None
        if call.most is not None:
            self._check_fits(call.message, call.most)
        try:
            return self._shard.step(
                call.ticket,
                call.message,
                self._clock(),
                magnitudes=call.inspected,
                allocator=call.allocator,
                settled=self._chains.idle,
            )
        except TasksPending:
            return None

    async def _in_turn(self, call: _Call) -> StepResult:
        """Takes a step that is guarded (`psserver.core.variables.guarded_updates`) when all tasks have been run, or
        one that comes after.

        Meanwhile no other step is taken, so that no tasks are added: it waits for those under way only. It computes in
        the loop, which stands still for that.
        """
        async with self._turns:
            while (work := self._begin(call, in_turn=True)) is None:
                await self._chains.ended()
            return work

    async def _compile(self, message: Register | Tune) -> None:
        """Has the fused loops of a message's optimizers compiled, in a thread, before it is taken: others go on.

        Raises:
            ParamServerError: the shard's refusal of the message.
        """
        self._shard.check(message)
        specs = [message.optimizer] if isinstance(message, Tune) else [one.optimizer for one in message.declarations]
        names = {name for spec in specs if spec is not None and (name := loop_name(spec)) is not None}
        if names <= self._compiled:
            return
        async with self._compiling:
            for name in sorted(names - self._compiled):
                await asyncio.get_running_loop().run_in_executor(self._looking, kernels.fused_loop, name)
                self._compiled.add(name)

    def _log(self, work: StepResult) -> None:
        for event in work.events:
            log.log(logging.WARNING if event.warning else logging.INFO, "%s", event.text)

    def _release(self, work: StepResult) -> None:
        """Frees whom a step has set free when its tasks are done."""
        self._log(work)
        freed = [(self._parked.pop(reply.ticket, None), reply) for reply in work.replies]
        try:
            under_way = self._chains.add(work.tasks)
        except Exception as fault:
            if not freed:
                raise
            _answer(freed, fault)
            return
        if under_way is None:
            _answer(freed, None)
        else:
            under_way.add_done_callback(lambda end: _answer(freed, end.exception()))

    # --- sizes ----------------------------------------------------------------------------------------------------

    def _check_fits(self, message: Request | Tick, most: int) -> None:
        outgoing = self._outgoing(message, at_once=True)
        if outgoing > most:
            self._shard.check(message)
            raise AnswerTooLarge(
                f"the answer to this {type(message).__name__} would have {outgoing:,} bytes of values, but a single "
                f"call carries {most:,}: use Transfer (nothing was done)"
            )

    def _outgoing(self, message: Request | Tick, *, at_once: bool = False) -> int:
        """Bytes of the values in the answer."""
        try:
            return self._shard.answer_bytes(message, at_once=at_once)
        except (InvalidMessage, UnknownVariable):
            return 0  # the step will refuse it, and says first whether the worker is a member at all


def _answer(freed: Iterable[tuple[_Waiting | None, Reply]], fault: BaseException | None) -> None:
    for answer, reply in freed:
        if answer is None or answer.done():
            continue
        if fault is not None:  # tasks cannot fail; if one does, it must not look as if it were done
            answer.set_exception(fault)
        elif isinstance(reply.answer, ParamServerError):
            answer.set_exception(reply.answer)
        else:
            answer.set_result(reply.answer)


def _given(reply: Reply) -> Answer:
    if isinstance(reply.answer, ParamServerError):
        raise reply.answer
    return reply.answer


class _TaskOrder:
    """The tasks that are under way: those of a variable one after the other, those of several side by side.

    `_last` has by variable the end of its chain. A bundle of tasks waits for the ends of its variables' chains as they
    are when it is added, and becomes their end: so it waits for earlier ones only, and nothing waits for ever.
    """

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._last: dict[str, asyncio.Task[None]] = {}

    def done_at_once(self, tasks: Sequence[ArrayTask]) -> bool:
        """Does all of it if it is little and need not wait; returns whether it did."""
        if self._busy(tasks) or _effort(tasks) > SMALL:
            return False
        run(tasks)
        return True

    def add(self, tasks: Sequence[ArrayTask]) -> asyncio.Future[Any] | None:
        """Does what is little and need not wait; returns the end of the rest, None if there is none."""
        if self.done_at_once(tasks):
            return None
        started: list[asyncio.Task[None]] = []
        at_once: list[ArrayTask] = []
        left = SMALL
        for bundle in sorted(self._bundles(tasks), key=_effort):
            effort = _effort(bundle)
            if effort <= left and not self._busy(bundle):
                at_once += bundle
                left -= effort
            else:
                started.append(self._start(bundle))
        run(at_once)
        if len(started) < 2:
            return started[0] if started else None
        return asyncio.gather(*started)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._last

    async def ended(self) -> None:
        """Returns when nothing is under way."""
        await _settled(self._last.values())

    def _busy(self, tasks: Iterable[ArrayTask]) -> bool:
        return bool(self._last) and any(task.variable in self._last for task in tasks)

    def _start(self, bundle: Sequence[ArrayTask]) -> asyncio.Task[None]:
        names = {task.variable for task in bundle}
        before = {self._last[name] for name in names if name in self._last}
        rounds = _rounds(bundle)
        first = [] if before else self._submit(next(rounds))
        end = asyncio.get_running_loop().create_task(self._run(first, rounds, before))
        self._last.update(dict.fromkeys(names, end))
        end.add_done_callback(lambda _: self._forget(names, end))
        return end

    def _forget(self, names: Iterable[str], end: asyncio.Task[None]) -> None:
        for name in names:
            if self._last.get(name) is end:
                del self._last[name]

    async def _run(
        self, first: _Jobs, rounds: Iterator[list[Callable[[], None]]], before: Iterable[asyncio.Task[None]]
    ) -> None:
        """Returns when all rounds are done, of which the first may be under way; raises what one of them has raised."""
        await _settled(before)
        ends = await asyncio.gather(*first, return_exceptions=True)
        for jobs in rounds:
            ends += await asyncio.gather(*self._submit(jobs), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end

    def _submit(self, jobs: Iterable[Callable[[], None]]) -> _Jobs:
        loop = asyncio.get_running_loop()
        return [loop.run_in_executor(self._threads, job) for job in jobs]

    def _bundles(self, tasks: Iterable[ArrayTask]) -> list[list[ArrayTask]]:
        """The tasks by variable, in their order; those of small variables together, but for ones that must wait."""
        by_variable: dict[str, list[ArrayTask]] = {}
        for task in tasks:
            by_variable.setdefault(task.variable, []).append(task)
        bundles: list[list[ArrayTask]] = []
        together: list[ArrayTask] = []
        room = 0
        for name, mine in by_variable.items():
            effort = _effort(mine)
            if effort > SMALL or name in self._last:
                bundles.append(mine)
            elif together and effort <= room:
                together += mine
                room -= effort
            else:
                together, room = list(mine), SMALL - effort
                bundles.append(together)
        return bundles


def _rounds(bundle: Sequence[ArrayTask]) -> Iterator[list[Callable[[], None]]]:
    """The tasks as rounds of jobs, one round after the other; those of a round at the same time."""
    if _effort(bundle) < DIVIDED:
        yield [partial(run, bundle)]
        return
    for stage in stages(bundle):
        elements = stage[0].elements
        if elements <= STRETCH:
            yield [partial(run, stage)]
            continue
        stretches = [(start, min(start + STRETCH, elements)) for start in range(0, elements, STRETCH)]
        for first in range(0, len(stretches), ROUND):
            shared = iter(stretches[first : first + ROUND])
            yield [partial(run_parts, stage, shared) for _ in range(THREADS)]


def _effort(tasks: Sequence[ArrayTask]) -> int:
    return sum([task.nbytes for task in tasks]) + A_TASK * len(tasks)


async def _settled(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Returns when all have ended; if one has failed, its own callers hear of it."""
    pending = set(tasks)
    if pending:
        await asyncio.wait(pending)
