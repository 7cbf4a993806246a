"""A TCP proxy between one worker process and one server that can cut, reset, stall and refuse connections."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from contextlib import suppress


class Proxy:
    """Listens on a free port and forwards data to `target` in both directions.

    Attributes:
        address: its own address.
    """

    def __init__(self, target: str) -> None:
        self._target = target.rpartition(":")[::2]
        self._passing = asyncio.Event()
        self._passing.set()
        self._refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._left: float = math.inf  # bytes to forward before all connections are cut

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    def close(self) -> None:
        self._server.close()
        self._passing.set()
        self.refuse()

    def cut(self, after: int = 0) -> None:
        """Closes all connections in order, after this many more bytes in either direction."""
        self._left = after or math.inf
        for writer in () if after else self._writers:
            writer.close()

    def reset(self) -> None:
        for writer in self._writers:
            with suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    def stall(self) -> None:
        self._passing.clear()

    def refuse(self) -> None:
        """Resets all connections, and new ones at once, until `resume`."""
        self._refusing = True
        self.reset()

    def resume(self) -> None:
        self._refusing = False
        self._passing.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        pair = {writer}
        with suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            pair.add(far_writer)
            self._writers |= pair
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        self._writers -= pair
        for one in pair:
            one.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, RuntimeError):
            while data := await reader.read(1 << 16):
                await self._passing.wait()
                allowed = min(len(data), self._left)
                self._left -= allowed
                writer.write(data[:allowed])
                await writer.drain()
                if not self._left:
                    self.cut()
        writer.close()
