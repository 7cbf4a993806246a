"""A shard behind its service: calls of bytes, as gRPC would hand them over, and bytes of direct connections."""

import asyncio
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from psserver.rpc.call_errors import CallErrors
from psserver.rpc.direct.connection import READ_BYTES, DirectConnection
from psserver.rpc.identity import Identity
from psserver.rpc.service import SERVICE_NAME, Service
from psserver.rpc.transfer_memory import SharedMemory
from psserver.runtime.executor import Executor
from pswire.errors import Malformed, ParamServerError
from pswire.network.channel import MEMBER_TOKEN
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.tensors import direct
from pswire.tensors.frame import incoming
from pswire.v1 import paramserver_pb2 as pb
from tests.fuzz.harness import Finding
from tests.support.shards import new_shard

#: Of a call, by its number: the methods; and, from `STREAM` on, a frame of one of the streams.
METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["ParameterServer"].methods]
STREAM, STREAMS = 128, 4

#: On direct connections, bytes as they are, beside frames, which get their lengths.
RAW = STREAM + STREAMS

#: The protobuf of a packet, by its tag.
KINDS: dict[int, Any] = {
    number: getattr(pb, method.input_type.name)
    for number, method in enumerate(pb.DESCRIPTOR.services_by_name["ParameterServer"].methods)
} | {STREAM + number: pb.Frame for number in range(STREAMS)}

#: Steps of the event loop in which a call of a few bytes is answered, unless it waits for others.
STEPS = 30

#: Bytes of variables, and of calls in progress.
MEMORY = 1 << 20

#: Of the shard, and of its job: always the same, so that what workers report of a recorded shard is valid.
IDENTITY, JOB_KEY = 1, bytes(32)

#: A job of each consistency policy, and of each handling of staleness.
POLICIES = (
    ("async", "none"),
    ("sync:2", "none"),
    ("bounded:1", "scale"),
    ("async", "drop:1"),
    ("async", "delay-compensated"),
)

_loop = asyncio.new_event_loop()
_buffer = memoryview(bytearray(READ_BYTES))


class Aborted(Exception):
    """The end of a call by an error, as gRPC's."""


class _Call:
    """The context of a call: it reads from a queue, and keeps what is written."""

    def __init__(self, metadata: Iterable[tuple[str, Any]]) -> None:
        self._metadata = tuple(metadata)
        self._frames: asyncio.Queue[Any] = asyncio.Queue()
        self.written: list[bytes] = []

    def send(self, data: Any) -> None:
        self._frames.put_nowait(data)

    def peer(self) -> str:
        return f"ipv4:127.0.0.1:{id(self)}"  # the pauses of a connection that is refused again and again are none here

    def cancelled(self) -> bool:
        return False

    def auth_context(self) -> dict[str, Any]:
        return {}

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._metadata

    async def read(self) -> Any:
        return await self._frames.get()

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any = ()) -> None:
        if code is grpc.StatusCode.INTERNAL:
            raise Finding(f"{code}: {details}")  # what it was is in the log
        raise Aborted(f"{code}: {details}")


class _Direct:
    """The worker's end of a direct connection, whose first bytes are a Hello with a token, or any other."""

    def __init__(self, service: Service, hello: bytes) -> None:
        self._ours, self._theirs = socket.socketpair()
        for one in (self._ours, self._theirs):
            one.setblocking(False)
        self._service = service
        self.written: list[bytes] = []
        self.send(hello)

    async def serve(self) -> None:
        connection = DirectConnection(self._theirs, f"ipv4:127.0.0.1:{id(self)}", _buffer, 15.0)
        try:
            await connection.handshake()
            await self._service.serve_direct(connection)
        except Malformed as error:  # as `DirectListener` does
            raise Aborted from error
        finally:
            connection.close()

    def send(self, data: bytes) -> None:
        with suppress(OSError):  # it has ended, or takes no more now
            self._ours.send(data)

    def read(self) -> None:
        """Take what the server has written."""
        with suppress(OSError):
            while data := self._ours.recv(READ_BYTES):
                self.written.append(data)

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()  # also if it was not served


def direct_message(frame: bytes) -> bytes:
    """The bytes on a direct connection of a frame; any bytes are a header."""
    with suppress(ParamServerError):
        found = incoming(frame)
        return b"".join(direct.message(found.header, [one for one in (found.data, found.chunk) if one is not None]))
    return direct.message(pb.Frame())[0][:4] + struct.pack("<IQ", len(frame), 0) + frame + bytes(-len(frame) % 16)


class ServedShard:
    """A shard of small limits, and the calls that it serves; streams are direct connections if it is `direct`."""

    def __init__(self, policy: int = 0, *, direct: bool = False) -> None:
        self._direct: dict[int, _Direct] | None = {} if direct else None
        consistency, staleness = POLICIES[policy % len(POLICIES)]
        self._now = 0.0
        self.shard = new_shard(
            0, 1, 15.0, MEMORY, parse_consistency(consistency), parse_staleness(staleness), identity=IDENTITY
        )
        self.shard.begin_from(1, 0.0)  # as that of a server that keeps checkpoints
        self.executor = Executor(self.shard, lambda: self._now)
        self._service = Service(self.executor, Identity(JOB_KEY), CallErrors(), MEMORY, 15.0, SharedMemory(None))
        self._handlers = self._service.handlers()
        self._tasks: list[asyncio.Task[Any]] = []
        self._streams: dict[int, _Call] = {}
        self._tokens: dict[str, bytes] = {}
        self._calls: list[_Call] = []

    async def call(self, tag: int, data: bytes) -> None:
        """Serve one call of a method, or one frame of a stream, until all that can be done at once is done."""
        if tag >= STREAM and self._direct is not None:
            self._send(self._direct, tag, data)
        elif tag >= STREAM:
            number = tag % STREAMS
            if number not in self._streams:
                self._streams[number] = self._begin("Transfer", data)
            else:
                self._streams[number].send(data)
        else:
            method = METHODS[tag % len(METHODS)]
            if method == "Transfer":
                return
            call = self._begin(method, data)
            call.send(grpc.aio.EOF)
        for _ in range(STEPS):
            await asyncio.sleep(0)
            if tag < STREAM and self._tasks[-1].done():
                break
        self._now += 0.01
        for one in (self._direct or {}).values():
            one.read()
        if tag < STREAM and METHODS[tag % len(METHODS)] == "Join" and call.written:
            self._tokens[pb.JoinRequest.FromString(data).worker] = pb.JoinReply.FromString(call.written[0]).token

    def tick(self) -> None:
        """As the server does now and then; time has passed meanwhile."""
        self._now += 6.0
        self.executor.tick()

    @property
    def answers(self) -> int:
        """Answers so far, of all calls."""
        return sum([len(call.written) for call in [*self._calls, *(self._direct or {}).values()]])

    async def close(self) -> None:
        """Nothing of the calls stays. Raises `Finding` for what went wrong in one of them."""
        self.executor.close()
        self._service.close()
        for task in self._tasks:
            task.cancel()
        for end in await asyncio.gather(*self._tasks, return_exceptions=True):
            if not isinstance(end, Aborted | asyncio.CancelledError | None):
                raise end
        await self.executor.shutdown()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for one in (self._direct or {}).values():
            one.close()

    def _send(self, connections: dict[int, _Direct], tag: int, data: bytes) -> None:
        """Send a frame, or bytes, on a direct connection, which begins with a Hello, or with these bytes."""
        number, sent = tag % STREAMS, data if tag >= RAW else direct_message(data)
        if number not in connections:
            hello = b"".join(direct.message(pb.Hello(member=self._token("Transfer", data))))
            connections[number] = _Direct(self._service, b"" if tag >= RAW else hello)
            self._tasks.append(_loop.create_task(connections[number].serve()))
        connections[number].send(sent)

    def _begin(self, method: str, data: bytes) -> _Call:
        details = SimpleNamespace(method=f"/{SERVICE_NAME}/{method}", invocation_metadata=())
        handler = self._handlers.service(details)
        call = _Call(((MEMBER_TOKEN, token),) if (token := self._token(method, data)) else ())

        async def unary() -> None:
            await call.write(await handler.unary_unary(data, call))

        self._calls.append(call)
        if handler.unary_unary is not None:
            served = unary()
        else:
            call.send(data)
            served = handler.stream_stream(None, call)
        self._tasks.append(_loop.create_task(served))
        return call

    def _token(self, method: str, data: bytes) -> bytes:
        """The token of the worker that a request names, or else of the last one that has joined; b"" before that."""
        name = ""
        with suppress(DecodeError, ParamServerError):
            request: Any = KINDS[METHODS.index(method)].FromString(data) if method != "Transfer" else None
            if request is None:
                header = incoming(data).header
                request = getattr(header, header.WhichOneof("piece") or "attach")
            name = request.worker if method == "Join" else getattr(request, "sender", pb.Sender()).worker
        return self._tokens.get(name) or next(reversed(self._tokens.values()), b"")


def serve(calls: Iterable[tuple[int, bytes]], policy: int = 0, *, direct: bool = False) -> int:
    """Serve calls one after the other, and return how many answers there were; the tag 255 is a tick.

    Streams are gRPC's, or direct connections, of which the parts of answers count.
    """

    async def all_calls() -> int:
        served = ServedShard(policy, direct=direct)
        for tag, data in calls:
            if tag == 255:
                served.tick()
            else:
                await served.call(tag, data)
        await served.close()
        return served.answers

    return _loop.run_until_complete(all_calls())
