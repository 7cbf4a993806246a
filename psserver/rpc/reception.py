"""The reception of unary messages: room and time for each before it is read.

gRPC keeps an unfinished message in memory, outside any budget, as long as it is being read; before that, flow control
stops its sender after some 64 KiB. So a message is read only when there is room for the largest one, and its sender has
a deadline. The message that has waited longest for its sender gives way to others: an honest one arrives with its
headers.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc.aio

from pswire.errors import Malformed, TimedOut, Unavailable
from pswire.limits import MAX_MESSAGE

#: Unfinished messages together may take the traffic's limit divided by this, beside it; their least and most.
UNFINISHED_PART, MIN_UNFINISHED, MAX_UNFINISHED = 8, 4, 64

#: Seconds that a message may take to arrive while others wait for its room.
SECONDS_WHILE_OTHERS_WAIT = 0.02


def unfinished_messages(traffic_limit: int) -> int:
    """The number of messages that may be read at the same time with this limit of bytes in progress."""
    return max(MIN_UNFINISHED, min(MAX_UNFINISHED, traffic_limit // UNFINISHED_PART // MAX_MESSAGE))


class _Call:
    """A call whose message is not there yet, and the timeout that ends it."""

    __slots__ = ("arriving", "began", "caller", "ended", "patience")

    def __init__(self, caller: str, patience: asyncio.Timeout) -> None:
        self.caller, self.patience = caller, patience
        self.began = 0.0
        self.arriving, self.ended = True, False

    def end_at(self, time: float) -> None:
        """End the wait for its message at this time, to make room."""
        self.ended = True
        with suppress(RuntimeError):  # it ends already
            self.patience.reschedule(time)


class _Turns:
    """Turns at a rate, first come, first served; after a pause up to a second's worth at once."""

    def __init__(self, rate: float) -> None:
        self._rate, self._ready = rate, rate
        self._last = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Wait for a turn."""
        loop = asyncio.get_running_loop()
        self._refill(loop)
        if not self._waiting and self._ready >= 1:
            self._ready -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_later(1 / self._rate, self._give, loop)
        await turn

    def _refill(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._ready, self._last = min(self._rate, self._ready + (now - self._last) * self._rate), now

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        self._refill(loop)
        while self._waiting and (self._ready >= 1 or self._waiting[0].done()):
            turn = self._waiting.popleft()
            if not turn.done():  # done: its caller has gone
                turn.set_result(None)
                self._ready -= 1
        if self._waiting:
            loop.call_later(1 / self._rate, self._give, loop)


class Reception:
    """Receives the unary messages of one kind of callers, such as members, or strangers.

    Args:
        name: the kind of callers, for errors.
        calls: at the same time. A further one takes the place of the oldest unfinished message of the caller that has
            the most calls.
        unfinished: messages that are read at the same time, each of which may take `MAX_MESSAGE` bytes.
        seconds: for a message to arrive.
        of_one: calls of one caller at the same time.
        rate: calls per second; further ones wait. None: any.
    """

    def __init__(
        self,
        name: str,
        calls: int,
        unfinished: int,
        seconds: float,
        of_one: int,
        *,
        rate: float | None = None,
    ) -> None:
        self._name, self._limit, self._seconds = name, calls, seconds
        self._of_one = of_one
        self._calls: dict[str, dict[_Call, None]] = {}  # by caller; the oldest is first
        self._count = 0
        self._free = unfinished
        self._reading: dict[_Call, None] = {}  # the oldest is first
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turns = _Turns(rate) if rate else None

    @asynccontextmanager
    async def message(self, context: grpc.aio.ServicerContext, caller: str) -> AsyncIterator[bytes]:
        """The message of a call, which counts within the block. A stranger is known by its connection.

        Raises:
            Unavailable: too many calls at the same time.
            TimedOut: the message did not arrive in time.
            Malformed: the call ended without a message.
        """
        patience = asyncio.timeout(self._seconds)
        call = self._enter(_Call(caller, patience))
        try:
            try:
                async with patience:
                    data = await self._read(call, context)
            except TimeoutError:
                raise self._timed_out(call) from None
            call.arriving = False
            if data is grpc.aio.EOF:
                raise Malformed("a call without a message")
            yield data
        finally:
            self._leave(call)

    def _timed_out(self, call: _Call) -> TimedOut | Unavailable:
        if call.ended:
            return Unavailable(f"too many calls of {self._name} at the same time: the oldest gives way; try again")
        return TimedOut(f"the message did not arrive within {self._seconds:g} s")

    def _enter(self, call: _Call) -> _Call:
        mine = self._calls.get(call.caller, {})
        if len(mine) >= self._of_one:
            raise Unavailable(f"{len(mine)} calls of this caller are in progress: that is the limit; try again")
        if self._count >= self._limit:
            busiest = max(self._calls.values(), key=len)
            victim = next((one for one in busiest if one.arriving and not one.ended), None)
            if victim is None or len(busiest) <= len(mine):
                raise Unavailable(
                    f"the server is at its limit of {self._limit:,} concurrent calls of {self._name} (--max-calls); "
                    "try again"
                )
            victim.end_at(0.0)
        self._calls.setdefault(call.caller, mine)[call] = None
        self._count += 1
        return call

    def _leave(self, call: _Call) -> None:
        self._count -= 1
        mine = self._calls[call.caller]
        del mine[call]
        if not mine:
            del self._calls[call.caller]

    async def _read(self, call: _Call, context: grpc.aio.ServicerContext) -> bytes:
        loop = asyncio.get_running_loop()
        if self._turns is not None:
            await self._turns.next()
        if self._free:
            self._free -= 1
        else:
            await self._wait(loop)
        call.began = loop.time()
        self._reading[call] = None
        if self._waiting:
            call.end_at(call.began + SECONDS_WHILE_OTHERS_WAIT)
        try:
            data: bytes = await context.read()
        finally:
            del self._reading[call]
            self._give_back()
        return data

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the room of a message; the oldest one makes it, if it does not arrive soon."""
        oldest = next((one for one in self._reading if not one.ended), None)
        if oldest is not None:
            oldest.end_at(max(loop.time(), oldest.began + SECONDS_WHILE_OTHERS_WAIT))
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._give_back()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def _give_back(self) -> None:
        """Give the room of a message to the next who waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
