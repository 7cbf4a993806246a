"""The one way to a shard: takes messages of many callers one after the other, and gives each its answer when it comes.

Owns the shard's lock, its tickets and the one thread for long steps. Small steps run on the event loop itself, large
ones beside it, so that it goes on receiving. All methods are called in that loop. Knows nothing of gRPC or bytes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from psserver.core.shard import Shard
from pswire.errors import TooLarge, Unavailable, UnknownVariable
from pswire.messages import (
    Answer,
    Message,
    Reply,
    Request,
    Tick,
)
from pswire.payload import answer_bytes, owned, tensor_bytes

#: Bytes that a step may take in and give out and still run on the event loop: some 100 us with the costliest rule.
SMALL = 256 << 10

_Waiting = asyncio.Future[Answer]


#: What a caller hears when the server stops before it could answer.
STOPPING = "the server is stopping: try again when one is back at this address"


class AnswerTooLarge(TooLarge):
    """An answer with more values than its caller can take at once; nothing was done."""


class Entrance:
    """Lets messages to the shard, one at a time and in the order of their coming.

    Args:
        shard: nobody else may use it.
        clock: seconds, never going back.
    """

    def __init__(self, shard: Shard, clock: Callable[[], float]) -> None:
        self._shard = shard
        self._clock = clock
        self._lock = asyncio.Lock()
        self._tickets = itertools.count(1)
        self._parked: dict[int, _Waiting] = {}
        self._closing = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="psserver-shard")

    async def admit(self, message: Request) -> int:
        """The bytes that `message`, whose arrays may still be hollow, will bring and take away.

        Raises:
            ParamServerError: the shard will not take it.
        """
        async with self._lock:
            self._shard.check(message)
            return tensor_bytes(message) + self._outgoing(message)

    async def step(self, message: Request, most: int | None = None) -> Answer:
        """The shard's answer, with values of its own; waits until the shard gives it.

        A caller that is cancelled before its turn has changed nothing; one that is cancelled later is forgotten,
        the step is not.

        Args:
            message: what is said; its arrays are borrowed until the answer.
            most: bytes of values that the answer may have.

        Raises:
            AnswerTooLarge: the answer would have more than `most`; the step was not done.
            Unavailable: the server stops, and the answer would have to wait for others.
            ParamServerError: the shard's refusal.
        """
        ticket = next(self._tickets)
        answer: _Waiting = asyncio.get_running_loop().create_future()
        try:
            await self._turn(ticket, message, answer, most)
            return await answer
        finally:
            answer.cancel()
            self._parked.pop(ticket, None)

    async def tick(self) -> None:
        """Lets the shard see that time passes."""
        async with self._lock:
            self._release(self._advance(0, Tick()))

    def close(self) -> None:
        """Answers who waits for others with `Unavailable`, and from now on whoever would have to wait."""
        self._closing = True
        for answer in self._parked.values():
            if not answer.done():
                answer.set_exception(Unavailable(STOPPING))
        self._parked.clear()

    def shutdown(self) -> None:
        """Ends the thread; call when no step is under way."""
        self._thread.shutdown()

    # --- one turn -------------------------------------------------------------------------------------------------

    async def _turn(self, ticket: int, message: Request, answer: _Waiting, most: int | None) -> None:
        """Takes the lock, does the step here or in the thread, and gives the lock back when the step is done."""
        work: asyncio.Future[list[Reply]] | None = None
        await self._lock.acquire()
        try:
            if self._weigh(message, most) <= SMALL:
                self._settle(ticket, answer, self._advance(ticket, message))
            else:
                work = asyncio.get_running_loop().run_in_executor(self._thread, self._advance, ticket, message)
        finally:
            if work is None:
                self._lock.release()
        if work is not None:
            work.add_done_callback(partial(self._end_turn, ticket, answer))
            await asyncio.shield(work)  # a caller that is cancelled leaves the step and the lock as they are

    def _end_turn(self, ticket: int, answer: _Waiting, work: asyncio.Future[list[Reply]]) -> None:
        self._lock.release()
        if work.exception() is None:
            self._settle(ticket, answer, work.result())

    def _advance(self, ticket: int, message: Message) -> list[Reply]:
        """The step, and copies of the values in its replies: the shard's own are lent only until the next step."""
        replies = self._shard.step(ticket, message, self._clock())
        return [Reply(reply.ticket, owned(reply.answer)) for reply in replies]

    def _settle(self, ticket: int, answer: _Waiting, replies: Iterable[Reply]) -> None:
        """Parks the caller, unless it has gone; then frees whom the step has set free, most often this very one."""
        if not answer.done():
            self._parked[ticket] = answer
        self._release(replies)
        if self._closing:
            self.close()

    def _release(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            answer = self._parked.pop(reply.ticket, None)
            if answer is not None and not answer.done():
                answer.set_result(reply.answer)

    # --- sizes ----------------------------------------------------------------------------------------------------

    def _weigh(self, message: Request, most: int | None) -> int:
        outgoing = self._outgoing(message)
        if most is not None and outgoing > most:
            raise AnswerTooLarge(
                f"the answer to this {type(message).__name__} would have {outgoing:,} bytes of values, but a single "
                f"call carries {most:,}: use Transfer (nothing was done)"
            )
        return tensor_bytes(message) + outgoing

    def _outgoing(self, message: Request) -> int:
        """Bytes of the values in the answer."""
        try:
            return answer_bytes(message, self._shard.nbytes)
        except UnknownVariable:
            return 0  # the step will refuse it, and says first whether the worker is a member at all
