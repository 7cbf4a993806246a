"""Admission control: one budget for the bytes of all calls in progress, and thus a bound of the server's memory.

A call counts from the moment its bytes are announced, or have arrived, until its answer has been sent. Each member has
a share, so one that sends slowly, or reads its answers slowly, leaves room for the others.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psserver.measurements import Waits
from pswire.errors import TooLarge, Unavailable

#: Bytes beyond the limit that only calls of a single frame may use: at least the first, or the limit divided by the
#: second. So small pushes proceed while large transfers use all of the limit.
MIN_SMALL_BYTES, SMALL_PART = 8 << 20, 8

#: Bytes of a call that is never refused: a heartbeat, or a status, of a worker whose large push is under way.
MAX_UNLIMITED = 4 << 10

#: Calls of one member together may use the limit divided by this; a single call may use all of it.
SHARES = 2


class Admission:
    """Bytes of the calls in progress, by the members that make them. All methods are called in the event loop.

    Large transfers (`reserve`) have `limit` bytes, and wait `timeout` seconds for them: of one member, first come,
    first served; of several members, the one that uses the fewest bytes is next. Calls whose bytes have arrived
    (`hold`) do not wait, since waiting would need the memory too. `waits` counts the waiting calls.
    """

    def __init__(self, limit: int, timeout: float, waits: Waits | None = None) -> None:
        self._limit, self._timeout = limit, timeout
        self._waits = waits or Waits()
        self._small_limit = limit + max(MIN_SMALL_BYTES, limit // SMALL_PART)
        self._used = 0
        self._used_by: dict[str, int] = {}
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}  # who waits longest is first

    @asynccontextmanager
    async def reserve(self, member: str, nbytes: int) -> AsyncIterator[None]:
        """Reserve `nbytes` within the block.

        Raises:
            TooLarge: more than the limit.
            Unavailable: other transfers did not end in time.
        """
        if nbytes > self._limit:
            raise TooLarge(
                f"a transfer of {nbytes:,} bytes (request and answer), but this server has room for "
                f"{self._limit:,} at a time: use more shards, or raise --memory-limit"
            )
        await self._turn(member, nbytes)
        try:
            yield
        finally:
            self.release(member, nbytes)

    def hold(self, member: str, nbytes: int) -> None:
        """Count bytes that have arrived, until `release`; raises `Unavailable` if there is no room for them."""
        if nbytes > MAX_UNLIMITED and not (
            self._within_share(member, nbytes) and self._used + nbytes <= self._small_limit
        ):
            raise Unavailable(
                f"no room for a call of {nbytes:,} bytes: {self._used:,} of {self._small_limit:,} are in use, "
                f"{self._used_by.get(member, 0):,} by this worker; try again, or raise --memory-limit"
            )
        self.count(member, nbytes)

    def count(self, member: str, nbytes: int) -> None:
        """Count bytes, such as of an answer that is there already, whatever the limit, until `release`."""
        self._used += nbytes
        self._used_by[member] = self._used_by.get(member, 0) + nbytes

    def release(self, member: str, nbytes: int) -> None:
        """End the count of these bytes, and admit others."""
        self._used -= nbytes
        left = self._used_by.get(member, 0) - nbytes
        if left:
            self._used_by[member] = left
        else:
            self._used_by.pop(member, None)
        if self._waiting:
            self._admit()

    def _within_share(self, member: str, nbytes: int) -> bool:
        used = self._used_by.get(member, 0)
        return not used or used + nbytes <= self._limit // SHARES

    async def _turn(self, member: str, nbytes: int) -> None:
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(member, deque()).append((nbytes, admitted))
        self._admit()
        if admitted.done():
            return
        loop = asyncio.get_running_loop()
        self._waits.begin()
        began = loop.time()
        try:
            async with asyncio.timeout(self._timeout):
                await admitted
        except BaseException as error:
            if admitted.done() and not admitted.cancelled():  # at the same moment
                self.release(member, nbytes)
            else:
                admitted.cancel()
                self._admit()
            if not isinstance(error, TimeoutError):
                raise
            raise Unavailable(
                f"no room for a transfer of {nbytes:,} bytes within {self._timeout:g} s: {self._used:,} of "
                f"{self._limit:,} are in use; try again, or raise --memory-limit"
            ) from None
        finally:
            self._waits.end(loop.time() - began)

    def _admit(self) -> None:
        """Admit those who wait, in their order, as far as they fit; a large one is not overtaken for ever."""
        self._forget_those_who_left()
        while ready := [one for one, queue in self._waiting.items() if self._within_share(one, queue[0][0])]:
            member = min(ready, key=lambda one: self._used_by.get(one, 0))
            nbytes, admitted = self._waiting[member][0]
            if self._used + nbytes > self._limit:
                return
            self.count(member, nbytes)
            admitted.set_result(None)
            self._waiting[member] = self._waiting.pop(member)  # the last one, now
            self._forget_those_who_left()

    def _forget_those_who_left(self) -> None:
        """Remove calls that were admitted, or have stopped waiting, from the heads of the queues."""
        for member, queue in list(self._waiting.items()):
            while queue and queue[0][1].done():
                queue.popleft()
            if not queue:
                del self._waiting[member]
