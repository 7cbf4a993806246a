"""The sockets of the direct transport: they are bound before the shard begins, and then take connections.

A connection counts as a stranger's until the service has found that its Hello is a member's: there are few strangers at
a time, each has little time to say who it is, and the oldest gives way.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial

from psserver.rpc.direct.connection import READ_BYTES, DirectConnection
from psserver.rpc.tls import SocketCertificates
from psserver.rpc.unix_sockets import listen
from pswire.errors import ConfigurationError, Malformed, TimedOut
from pswire.messages import DirectAddress
from pswire.network.sockets import OF_SERVERS, set_options
from pswire.tensors.shared_segments import NotShared, socket_path

#: Connections of strangers at the same time, and the seconds that each of them has for its Hello.
STRANGERS, STRANGER_SECONDS = 256, 5.0

#: Connections that wait to be accepted, and those that are accepted in one turn.
QUEUE, ACCEPTED_AT_ONCE = 1024, 16

#: Seconds of a pause when no connection can be accepted, such as for too many open files.
PAUSE = 0.1

log = logging.getLogger(__name__)


class DirectSockets:
    """Listening sockets: TCP at the host of an address with `port` (0: a free one), and a Unix socket of this user.

    Either may be left out. `where` says where they are, None: nowhere. Raises `ConfigurationError` if the port cannot
    be bound.
    """

    def __init__(self, address: str, port: int | None, *, unix: bool) -> None:
        self._stack = ExitStack()
        self.listening: list[socket.socket] = []
        found, name = 0, ""
        if port is not None and not address.startswith("unix:"):
            found = self._bind(address.rpartition(":")[0].strip("[]"), port)
        if unix and port is not None:
            with suppress(NotShared):
                one, name = listen(QUEUE)
                self._add(one, name)
        self.where = DirectAddress(found, name) if found or name else None

    def close(self) -> None:
        """Close all, and remove the file of the Unix socket."""
        self._stack.close()

    def _bind(self, host: str, port: int) -> int:
        for family, kind, protocol, _, place in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            one = socket.socket(family, kind, protocol)
            self._add(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                one.bind((place[0], port, *place[2:]))
                one.listen(QUEUE)
            except OSError as error:
                self.close()
                raise ConfigurationError(
                    f"cannot listen on port {port} of {host} for the direct transport: {error.strerror}; choose "
                    "another port, 0 for a free one, or none: --direct-port off"
                ) from error
            port = one.getsockname()[1]
        return port

    def _add(self, one: socket.socket, name: str = "") -> None:
        one.setblocking(False)
        self._stack.callback(one.close)
        self.listening.append(one)
        if name:
            self._stack.callback(_remove, name)


class DirectListener:
    """Takes the connections of sockets, and serves each in a task of its own by `serve`; used in the event loop.

    Args:
        sockets: closed with the listener.
        tls: for connections over TCP.
        seconds: for a message that has begun.
    """

    def __init__(
        self,
        sockets: DirectSockets,
        serve: Callable[[DirectConnection], Awaitable[None]],
        tls: SocketCertificates | None,
        seconds: float,
    ) -> None:
        self._sockets, self._serve, self._tls, self._seconds = sockets, serve, tls, seconds
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], None] = {}  # the oldest is first
        self._loop = asyncio.get_running_loop()
        for one in sockets.listening:
            self._watch(one)

    async def stop(self, grace: float) -> None:
        """Take no more connections; those in the middle of a call get `grace` seconds."""
        for one in self._sockets.listening:
            self._loop.remove_reader(one)
        self._sockets.close()
        for task in self._strangers:
            task.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace)
            for task in late:
                task.cancel()

    def _watch(self, one: socket.socket) -> None:
        if one.fileno() >= 0:
            self._loop.add_reader(one, self._accept, one)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, place = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("cannot accept a direct connection: %s", error.strerror)
                self._loop.remove_reader(listening)
                self._loop.call_later(PAUSE, self._watch, listening)
                return
            task = self._loop.create_task(self._run(connection, _peer(connection, place)))
            self._tasks.add(task)
            self._strangers[task] = None
            task.add_done_callback(partial(self._forget, connection))
            if len(self._strangers) > STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.cancel()

    def _forget(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()  # also of a task that was cancelled before it began
        self._tasks.discard(task)
        self._strangers.pop(task, None)

    async def _run(self, connection: socket.socket, peer: str) -> None:
        try:
            connection = self._prepared(connection)
            one = DirectConnection(connection, peer, self._buffer, self._seconds, self._member)
        except OSError as error:
            log.info("no direct connection of %s: %s", peer, error)
            connection.close()
            return
        try:
            if await self._greeted(one):
                await self._serve(one)
        except asyncio.CancelledError:
            pass  # the worker has gone, or this server stops
        finally:
            one.close()

    def _prepared(self, connection: socket.socket) -> socket.socket:
        """The socket with its options, and TLS. Raises `OSError`."""
        connection.setblocking(False)
        if connection.family == socket.AF_UNIX:
            return connection
        set_options(connection, OF_SERVERS)
        return connection if self._tls is None else self._tls.wrap(connection)

    def _member(self) -> None:
        """The connection of the current task is a member's."""
        task = asyncio.current_task()
        assert task is not None
        self._strangers.pop(task, None)

    async def _greeted(self, one: DirectConnection) -> bool:
        """Whether the handshake and the Hello came in time."""
        try:
            async with asyncio.timeout(STRANGER_SECONDS):
                await one.handshake()
        except (Malformed, TimeoutError, TimedOut) as error:
            log.info("no direct connection of %s: %s", one.peer(), error or "it has not said who it is")
            return False
        return True


def _peer(connection: socket.socket, place: object) -> str:
    """As gRPC writes addresses."""
    if connection.family == socket.AF_UNIX or not isinstance(place, tuple):
        return "unix:"
    host, port = place[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _remove(name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(socket_path(name))
