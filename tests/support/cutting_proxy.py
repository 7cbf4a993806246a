"""A TCP proxy before a server, which counts bytes and cuts connections."""

import asyncio
import threading
from functools import partial

from psworker.transport import DIRECT, GRPC
from tests.support.commands import loopback_host


class CuttingProxy:
    """A TCP proxy, in a thread, that cuts a connection within the answer in which these bytes of the server fall.

    It listens on `port`, or a free one; with the server's direct port it has an address of its own, with both ports of
    the server. `to_server` and `to_worker` are the bytes so far; `cuts_to_server` is for bytes of workers, as `after`.
    `cut` says which connections were cut: GRPC or DIRECT, if it has the direct port.
    """

    def __init__(self, target, after=(), cuts_to_server=(), port=0, direct_port=None):
        self._port, self._cuts_to_server = port, list(cuts_to_server)
        self._host, _, port = target.rpartition(":")
        self._ports = {int(port): GRPC} | ({} if direct_port is None else {direct_port: DIRECT})
        self._after, self.cut = list(after), []
        self.to_server = self.to_worker = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self):
        self._thread.start()
        self._servers = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        self.address = "{}:{}".format(*self._servers[0].sockets[0].getsockname())
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self):
        if len(self._ports) == 1:
            places = [("127.0.0.1", self._port)]
        else:
            host = loopback_host()
            places = [(host, port) for port in self._ports]
        return [
            await asyncio.start_server(partial(self._connected, port), *place)
            for port, place in zip(self._ports, places, strict=True)
        ]

    async def _close(self):
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, port, reader, writer):
        far_reader, far_writer = await asyncio.open_connection(self._host, port)
        await asyncio.gather(self._to_server(reader, far_writer), self._to_worker(far_reader, writer))

    async def _to_server(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                self.to_server += len(data)
                if self._cuts_to_server and self.to_server > self._cuts_to_server[0]:
                    writer.write(data[: len(data) // 2])
                    self._cuts_to_server.pop(0)
                    self.cut.append(self._ports[writer.get_extra_info("peername")[1]])
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def _to_worker(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                self.to_worker += len(data)
                if self._after and self.to_worker > self._after[0]:
                    writer.write(data[: len(data) // 2])
                    self._after.pop(0)
                    self.cut.append(self._ports.get(writer.get_extra_info("sockname")[1], GRPC))
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
