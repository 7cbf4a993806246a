"""A TCP proxy between one worker process and one server that can cut, reset, stall and refuse connections."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

CHUNK = 1 << 16


class Proxy:
    """Listens on a free port and forwards data to `target` in both directions.

    Attributes:
        address: its own address.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._passing = asyncio.Event()
        self._passing.set()
        self._refusing = False
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut_after = -1  # bytes to forward before all connections are cut; -1: unlimited

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        self._server.close()
        self._refusing = True
        self._passing.set()
        self.reset()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cut(self, after: int = 0) -> None:
        """Closes all connections in order, after this many more bytes in either direction."""
        if after:
            self._cut_after = after
            return
        for writer in list(self._writers):
            writer.close()

    def reset(self) -> None:
        for writer in list(self._writers):
            raw = writer.get_extra_info("socket")
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
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
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._refusing:
                writer.transport.abort()
                return
            self._writers[writer] = None
            try:
                far_reader, far_writer = await asyncio.open_connection(*self._target)
            except OSError:
                writer.transport.abort()
                return
            self._writers[far_writer] = None
            try:
                await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
            finally:
                far_writer.close()
                self._writers.pop(far_writer, None)
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            self._writers.pop(writer, None)
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._passing.wait()
                if 0 <= self._cut_after <= len(data):
                    writer.write(data[: self._cut_after])
                    self._cut_after = -1
                    with suppress(OSError):
                        await writer.drain()
                    self.cut()
                    return
                if self._cut_after > 0:
                    self._cut_after -= len(data)
                writer.write(data)
                await writer.drain()
        with suppress(OSError, RuntimeError):
            writer.close()
