"""Deadlines of transfers: one that is too slow is aborted, however often a byte arrives."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from pswire.errors import TimedOut

#: Bytes per second that a transfer must reach after its first seconds: 2 Mbit/s.
LEAST_RATE = 256 << 10

_Result = TypeVar("_Result")


class Deadline:
    """Ends a transfer that takes longer than `seconds`, and one more for each `LEAST_RATE` bytes that have passed.

    It begins when it is made. So a sender that sends a byte now and then has `seconds` in all, and not for each frame.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._time = asyncio.get_running_loop().time() + seconds
        self._timeout: asyncio.Timeout | None = None

    def passed(self, nbytes: int) -> None:
        """Extend it by the time for bytes that have passed."""
        self._time += nbytes / LEAST_RATE
        if self._timeout is not None:
            self._timeout.reschedule(self._time)

    async def wait(self, step: Awaitable[_Result]) -> _Result:
        """The result of one step of the transfer, such as a read, or of all of it. Raises `TimedOut`."""
        try:
            async with asyncio.timeout_at(self._time) as self._timeout:
                return await step
        except TimeoutError:
            raise TimedOut(
                f"the transfer stalled for {self._seconds:g} s, or was slower than {LEAST_RATE:,} bytes per second, "
                "and was aborted"
            ) from None
        finally:
            self._timeout = None
