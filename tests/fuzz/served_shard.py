"""A shard behind its gRPC service, without a network: calls of bytes, as gRPC would hand them over."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from psserver.rpc.call_errors import CallErrors
from psserver.rpc.identity import Identity
from psserver.rpc.service import SERVICE_NAME, Service
from psserver.rpc.transfer_memory import SharedMemory
from psserver.runtime.executor import Executor
from pswire.errors import ParamServerError
from pswire.network.channel import MEMBER_TOKEN
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.tensors.frame import incoming
from pswire.v1 import paramserver_pb2 as pb
from tests.fuzz.harness import Finding
from tests.support.shards import new_shard

#: Of a call, by its number: the methods; and, from `STREAM` on, a frame of one of the streams.
METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["ParameterServer"].methods]
STREAM, STREAMS = 128, 4

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


class ServedShard:
    """A shard of small limits, and the calls that it serves."""

    def __init__(self, policy: int = 0) -> None:
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
        if tag >= STREAM:
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
        if tag < STREAM and METHODS[tag % len(METHODS)] == "Join" and call.written:
            self._tokens[pb.JoinRequest.FromString(data).worker] = pb.JoinReply.FromString(call.written[0]).token

    def tick(self) -> None:
        """As the server does now and then; time has passed meanwhile."""
        self._now += 6.0
        self.executor.tick()

    @property
    def answers(self) -> int:
        """Answers so far, of all calls."""
        return sum([len(call.written) for call in self._calls])

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


def serve(calls: Iterable[tuple[int, bytes]], policy: int = 0) -> int:
    """Serve calls one after the other, and return how many answers there were; the tag 255 is a tick."""

    async def all_calls() -> int:
        served = ServedShard(policy)
        for tag, data in calls:
            if tag == 255:
                served.tick()
            else:
                await served.call(tag, data)
        await served.close()
        return served.answers

    return _loop.run_until_complete(all_calls())
