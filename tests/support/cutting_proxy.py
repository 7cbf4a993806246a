"""A TCP proxy before a server, which counts bytes and cuts connections."""

import asyncio
import threading


class CuttingProxy:
    """A TCP proxy, in a thread, that cuts a connection within the answer in which these bytes of the server fall.

    `to_server` and `to_worker` are the bytes so far; `cuts_to_server` is for bytes of workers, as `after`.
    """

    def __init__(self, target, after=(), cuts_to_server=(), port=0):
        self._target, self._after = target.rpartition(":")[::2], list(after)
        self._cuts_to_server, self._port = list(cuts_to_server), port
        self.to_server = self.to_worker = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self):
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self):
        return await asyncio.start_server(self._connected, "127.0.0.1", self._port)

    async def _close(self):
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader, writer):
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        await asyncio.gather(self._to_server(reader, far_writer), self._to_worker(far_reader, writer))

    async def _to_server(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                self.to_server += len(data)
                if self._cuts_to_server and self.to_server > self._cuts_to_server[0]:
                    writer.write(data[: len(data) // 2])
                    self._cuts_to_server.pop(0)
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
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
