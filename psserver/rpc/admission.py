"""Admission control: bounds the bytes of all transfers in progress, and thus the memory of the server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pswire.errors import TooLarge, Unavailable


class Admission:
    """Bytes of the transfers in progress, `limit` at most; others wait `timeout` seconds, first come, first served."""

    def __init__(self, limit: int, timeout: float) -> None:
        self._limit, self._timeout = limit, timeout
        self._reserved = 0
        self._turn = asyncio.Lock()
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, nbytes: int) -> AsyncIterator[None]:
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
        try:
            async with asyncio.timeout(self._timeout), self._turn:
                while self._reserved + nbytes > self._limit:
                    self._ended.clear()
                    await self._ended.wait()
                self._reserved += nbytes
        except TimeoutError:
            raise Unavailable(
                f"no room for a transfer of {nbytes:,} bytes within {self._timeout:g} s: {self._reserved:,} of "
                f"{self._limit:,} are in use; try again, or raise --memory-limit"
            ) from None
        try:
            yield
        finally:
            self._reserved -= nbytes
            self._ended.set()
