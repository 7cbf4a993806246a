"""Servers that send back what they receive, one for each way of writing a server, and their client in this process.

A message has the same number of bytes each way, which both sides know. Messages of one connection follow each other.
"""

import asyncio
import itertools
import multiprocessing
import queue
import selectors
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from pswire.network.channel import SERVER_OPTIONS, open_channel
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.system.host import keep_memory
from pswire.tensors.transport import CHUNK

_METHOD = "/echo/Echo"
_spawn = multiprocessing.get_context("spawn")


class Task(NamedTuple):
    """What a server does.

    Attributes:
        design: one of `DESIGNS`.
        nbytes: bytes of a message.
        unix: whether it listens on a Unix socket.
        certificates: the folder of `make_certificates`; None without TLS.
        host: the address at which it listens otherwise.
    """

    design: str
    nbytes: int
    unix: bool = False
    certificates: Path | None = None
    host: str = "127.0.0.1"


class Echo:
    """A server that is ready, and this process connected to it.

    Attributes:
        step: sends a message and receives the answer.
    """

    def __init__(self, step: Callable[[], object], pid: int) -> None:
        self.step = step
        self._clock = (~pid << 3) | 2  # of the process: clock_getcpuclockid(3)

    def processor_time(self) -> float:
        """Seconds that the server has used so far."""
        return time.clock_gettime(self._clock)


@contextmanager
def echo(task: Task, *namespaces: AbstractContextManager[None]) -> Iterator[Echo]:
    """A server process that ends with the block; it begins, and this process connects, within `namespaces` if given."""
    server_in, client_in = namespaces or (nullcontext(), nullcontext())
    here, there = _spawn.Pipe()
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "socket" if task.unix else None
        server = _spawn.Process(target=_serve, args=(task, path, there), daemon=True)
        with server_in:
            server.start()
        stack.callback(server.join)
        stack.callback(server.terminate)
        there.close()
        _, connect = DESIGNS[task.design]
        with client_in:
            step = stack.enter_context(connect(here.recv(), task))
        assert server.pid is not None
        yield Echo(step, server.pid)


def _serve(task: Task, path: Path | None, pipe: Connection) -> None:
    keep_memory()
    serve, _ = DESIGNS[task.design]
    serve(task, path, pipe.send)


# --- sockets ----------------------------------------------------------------------------------------------------------


def _listen(task: Task, path: Path | None, ready: Callable[[Any], None]) -> socket.socket:
    if path is None:
        listener = socket.create_server((task.host, 0))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
    ready(listener.getsockname())
    return listener


def _accepted(task: Task, path: Path | None, ready: Callable[[Any], None]) -> socket.socket:
    """The connection of the client, after the handshake."""
    with _listen(task, path, ready) as listener:
        connection, _ = listener.accept()
    _without_delay(connection)
    context = _server_tls(task)
    return connection if context is None else context.wrap_socket(connection, server_side=True)


def _server_tls(task: Task) -> ssl.SSLContext | None:
    if task.certificates is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(task.certificates / "server.crt", task.certificates / "server.key")
    return context


def _without_delay(connection: socket.socket) -> None:
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@contextmanager
def _socket_client(address: Any, task: Task) -> Iterator[Callable[[], object]]:
    """A blocking client."""
    connection = socket.socket(socket.AF_UNIX if task.unix else socket.AF_INET)
    connection.connect(address)
    _without_delay(connection)
    if task.certificates is not None:
        context = ssl.create_default_context(cafile=task.certificates / "ca.crt")
        connection = context.wrap_socket(connection, server_hostname="localhost")
    mine, theirs = bytes(task.nbytes), memoryview(bytearray(task.nbytes))

    def step() -> None:
        connection.sendall(mine)
        assert _fill(connection, theirs)

    with connection:
        yield step


def _fill(connection: socket.socket, view: memoryview) -> bool:
    """Receives into the whole buffer; False if the other side has closed first."""
    place = 0
    while place < len(view):
        count = connection.recv_into(view[place:])
        if not count:
            return False
        place += count
    return True


class _NonBlocking:
    """A connection that receives and sends when the kernel says that it can.

    Args:
        connection: after the handshake.
        nbytes: of a message.
        watch: names what to do when the connection can be read, or (True) written, instead of what it named before.
        decide: calls its argument, which sends the answer.
    """

    def __init__(self, connection: socket.socket, nbytes: int, watch: Callable, decide: Callable) -> None:
        connection.setblocking(False)
        self._connection, self._watch, self._decide = connection, partial(watch, connection), decide
        self._view, self._writing = memoryview(bytearray(nbytes)), False
        self._received = self._sent = 0  # bytes; the next message may arrive in one thread as the other ends an answer
        self._watch(False, self._receive)

    def _receive(self) -> None:
        try:
            while self._received < len(self._view):
                count = self._connection.recv_into(self._view[self._received :])
                if not count:
                    raise SystemExit
                self._received += count
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        self._received = 0
        self._decide(self._answer)

    def _answer(self) -> None:
        try:
            while self._sent < len(self._view):
                self._sent += self._connection.send(self._view[self._sent :])
        except (BlockingIOError, ssl.SSLWantWriteError):
            if not self._writing:
                self._writing = True
                self._watch(True, self._answer)
            return
        self._sent = 0
        if self._writing:
            self._writing = False
            self._watch(False, self._receive)


def _now(answer: Callable[[], None]) -> None:
    """Decides in the thread that has received the message."""
    answer()


def _in_event_loop(task: Task, path: Path | None, ready: Callable[[Any], None]) -> None:
    """Sockets that the event loop watches."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()

        def watch(connection: socket.socket, write: bool, then: Callable[[], None]) -> None:
            (loop.remove_reader if write else loop.remove_writer)(connection)
            (loop.add_writer if write else loop.add_reader)(connection, then)

        _NonBlocking(_accepted(task, path, ready), task.nbytes, watch, _now)
        await asyncio.Event().wait()

    _run(task, serve)


def _run(task: Task, serve: Callable) -> None:
    factory = None
    if task.design.endswith("uvloop"):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve())


def _beside_event_loop(connected: Callable, task: Task, path: Path | None, ready: Callable[[Any], None]) -> None:
    """A thread receives; it or the event loop decides."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        decide = loop.call_soon_threadsafe if task.design.endswith("and-loop") else _now
        arguments = _accepted(task, path, ready), task.nbytes, decide
        threading.Thread(target=connected, args=arguments, daemon=True).start()
        await asyncio.Event().wait()

    _run(task, serve)


def _select(connection: socket.socket, nbytes: int, decide: Callable) -> None:
    """The thread of all connections, with `selectors`."""
    selector = selectors.DefaultSelector()

    def watch(connection: socket.socket, write: bool, then: Callable[[], None]) -> None:
        change = selector.modify if connection.fileno() in selector.get_map() else selector.register
        change(connection, selectors.EVENT_WRITE if write else selectors.EVENT_READ, then)

    _NonBlocking(connection, nbytes, watch, decide)
    while True:
        for key, _ in selector.select():
            key.data()


def _block(connection: socket.socket, nbytes: int, decide: Callable) -> None:
    """The thread of one connection."""
    view, decided = memoryview(bytearray(nbytes)), threading.Event()
    while _fill(connection, view):
        if decide is not _now:
            decide(decided.set)
            decided.wait()
            decided.clear()
        connection.sendall(view)


class _Buffered(asyncio.BufferedProtocol):
    """A connection of asyncio's own transports."""

    def __init__(self, nbytes: int) -> None:
        self._view, self._place = memoryview(bytearray(nbytes)), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._place :]

    def buffer_updated(self, nbytes: int) -> None:
        self._place += nbytes
        if self._place == len(self._view):
            self._place = 0
            self._transport.write(self._view)


def _buffered(task: Task, path: Path | None, ready: Callable[[Any], None]) -> None:
    """`asyncio.BufferedProtocol`."""

    async def serve() -> None:
        listener = _listen(task, path, ready)
        loop = asyncio.get_running_loop()
        create = loop.create_server if path is None else loop.create_unix_server
        await create(partial(_Buffered, task.nbytes), sock=listener, ssl=_server_tls(task))
        await asyncio.Event().wait()

    _run(task, serve)


# --- gRPC -----------------------------------------------------------------------------------------------------------


def _chunks(nbytes: int) -> list[bytes]:
    return [bytes(min(CHUNK, nbytes - place)) for place in range(0, nbytes, CHUNK)] or [b""]


def _grpc_server(task: Task, path: Path | None, ready: Callable[[Any], None]) -> None:
    """A stream of grpc.aio, with large messages in chunks."""
    chunks = _chunks(task.nbytes)

    async def stream(requests, context: grpc.aio.ServicerContext) -> None:
        while True:
            for _ in chunks:
                if await context.read() is grpc.aio.EOF:
                    return
            for chunk in chunks:
                await context.write(chunk)

    async def serve() -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        service, method = _METHOD[1:].split("/")
        handler = grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(stream)})
        server.add_generic_rpc_handlers((handler,))
        address = f"{task.host}:0" if path is None else f"unix:{path}"
        if task.certificates is None:
            port = server.add_insecure_port(address)
        else:
            pair = [(task.certificates / f"server.{kind}").read_bytes() for kind in ("key", "crt")]
            port = server.add_secure_port(address, grpc.ssl_server_credentials([tuple(pair)]))
        await server.start()
        ready(f"{task.host}:{port}" if path is None else address)
        await server.wait_for_termination()

    _run(task, serve)


@contextmanager
def _grpc_client(address: str, task: Task) -> Iterator[Callable[[], object]]:
    """A synchronous client with one stream."""
    requests: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
    credentials = NO_CREDENTIALS if task.certificates is None else Credentials(str(task.certificates / "ca.crt"))
    chunks = _chunks(task.nbytes)
    with open_channel(address, credentials) as channel:
        answers = channel.stream_stream(_METHOD)(itertools.chain.from_iterable(iter(requests.get, None)))

        def step() -> None:
            requests.put(chunks)
            for _ in chunks:
                next(answers)

        try:
            yield step
        finally:
            requests.put(None)


# --- ZeroMQ -----------------------------------------------------------------------------------------------------------


def _zmq_server(task: Task, path: Path | None, ready: Callable[[Any], None]) -> None:
    """A thread that blocks in ZeroMQ, whose own thread has the connections."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.REP) as rep:
        rep.bind(f"tcp://{task.host}:*" if path is None else f"ipc://{path}")
        ready(rep.getsockopt_string(zmq.LAST_ENDPOINT))
        while True:
            rep.send(rep.recv(copy=False), copy=False)


@contextmanager
def _zmq_client(address: str, task: Task) -> Iterator[Callable[[], object]]:
    import zmq

    mine = bytes(task.nbytes)
    with zmq.Context() as context, context.socket(zmq.REQ) as req:
        req.connect(address)

        def step() -> None:
            req.send(mine, copy=False)
            assert len(req.recv(copy=False)) == task.nbytes

        yield step


#: By name: the server, which calls its last argument with its address, and the client.
DESIGNS: dict[str, tuple[Callable[..., None], Callable[..., Any]]] = {
    "grpc-aio": (_grpc_server, _grpc_client),
    "asyncio-buffered-protocol": (_buffered, _socket_client),
    "asyncio-add-reader": (_in_event_loop, _socket_client),
    "selectors-thread": (partial(_beside_event_loop, _select), _socket_client),
    "selectors-thread-and-loop": (partial(_beside_event_loop, _select), _socket_client),
    "blocking-thread": (partial(_beside_event_loop, _block), _socket_client),
    "blocking-thread-and-loop": (partial(_beside_event_loop, _block), _socket_client),
    "pyzmq": (_zmq_server, _zmq_client),
    "buffered-protocol-uvloop": (_buffered, _socket_client),
    "add-reader-uvloop": (_in_event_loop, _socket_client),
}
