"""The protocol's calls over a shard: decode, step, answer. No call has a method of its own but Transfer.

A unary call brings and takes its tensors inline. A Transfer is a stream of calls, each of which begins with a header,
which is checked against the shard before memory is allocated for what it announces, and nothing of a call is applied
before all of it is there.
Whatever goes wrong ends one call, with an error of ours, and never the server. May import entrance, pswire and grpc.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from psserver.rpc.reused_buffers import ReusedArrays
from psserver.rpc.shared_memory import AttachedSegments
from psserver.runtime.executor import STOPPING, AnswerTooLarge, Executor
from pswire.channel import status_of
from pswire.codec import decode, encode, from_frame, to_frame
from pswire.errors import InternalError, InvalidMessage, Malformed, ParamServerError, TimedOut, TooLarge, Unavailable
from pswire.messages import ANSWERS, Answer, Request
from pswire.messages.sizes import Allocator, tensor_bytes
from pswire.tensors.frames import Incoming, incoming
from pswire.tensors.inline import InlineReceiver, InlineSender
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import INLINE
from pswire.v1 import paramserver_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]

#: The service's full name, as health checks and reflection know it.
SERVICE_NAME: str = _SERVICE.full_name

#: Bytes of a frame that gRPC takes without a wait (HTTP/2 has room for 64 KiB of a stream from the first), so that no
#: timer is set for it: a worker that does not read it has one such frame here, and is as good as one that is idle.
AT_ONCE = 16 << 10

log = logging.getLogger(__name__)

_Proto = TypeVar("_Proto", bound=Proto)
_Result = TypeVar("_Result")


class Traffic:
    """The bytes of all transfers under way; one that would exceed the limit waits, first come first served.

    Args:
        limit: bytes.
        patience: seconds after which a transfer that waits for its turn is sent away.
    """

    def __init__(self, limit: int, patience: float) -> None:
        self._limit = limit
        self._patience = patience
        self._under_way = 0
        self._turn = asyncio.Lock()
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def of(self, nbytes: int) -> AsyncIterator[None]:
        """Reserves `nbytes` for the length of the block.

        Raises:
            TooLarge: more than the limit.
            Unavailable: others did not end in time.
        """
        if nbytes > self._limit:
            raise TooLarge(
                f"a transfer of {nbytes:,} bytes (what it brings and takes away), but this server has room for "
                f"{self._limit:,} at a time: use more shards, or raise --memory-limit"
            )
        await self._reserve(nbytes)
        try:
            yield
        finally:
            self._under_way -= nbytes
            self._ended.set()

    async def _reserve(self, nbytes: int) -> None:
        try:
            async with asyncio.timeout(self._patience), self._turn:
                while self._under_way + nbytes > self._limit:
                    self._ended.clear()
                    await self._ended.wait()
                self._under_way += nbytes
        except TimeoutError:
            raise Unavailable(
                f"no room for a transfer of {nbytes:,} bytes within {self._patience:g} s: {self._under_way:,} of "
                f"{self._limit:,} are under way; try again, or raise --memory-limit"
            ) from None


class Service:
    """Answers the calls of `paramserver.v1.ParameterServer`.

    Args:
        entrance: the way to the shard.
        traffic_limit: bytes that transfers may have under way.
        patience: seconds for which a transfer may stall before it is given up.
        shared_memory: whether workers of this host may bring memory to share.
    """

    def __init__(self, entrance: Executor, traffic_limit: int, patience: float, *, shared_memory: bool = True) -> None:
        self._entrance = entrance
        self._shared_memory = shared_memory
        self._traffic = Traffic(traffic_limit, patience)
        self._patience = patience
        self._idle: set[asyncio.Task[None]] = set()
        self._closing = False

    def close(self) -> None:
        """Ends the streams that wait for their next call; those with a call under way end after it."""
        self._closing = True
        for task in self._idle:
            task.cancel()

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers of all methods, for `grpc.aio.Server.add_generic_rpc_handlers`.

        They get and give bytes, because gRPC's own parsing would answer garbage with "unknown error".
        """
        methods = {}
        for method in _SERVICE.methods:
            if method.client_streaming:
                methods[method.name] = grpc.stream_stream_rpc_method_handler(self._serve_transfer)
            else:
                serve = partial(self._serve_unary, getattr(pb, method.input_type.name))
                methods[method.name] = grpc.unary_unary_rpc_method_handler(serve)
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    async def _serve_unary(self, kind: type[Proto], request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return await _guarded(self._unary(kind, request), context)

    async def _serve_transfer(self, frames: object, context: grpc.aio.ServicerContext) -> None:
        await _guarded(self._transfer(context), context)

    async def _unary(self, kind: type[Proto], request: bytes) -> bytes:
        message = _request(decode(_parse(kind, request), InlineReceiver()))
        answer = await self._entrance.step(message, most=INLINE)
        with _our_fault(answer):
            return encode(answer, InlineSender()).SerializeToString()

    # --- transfers ------------------------------------------------------------------------------------------------

    async def _transfer(self, context: grpc.aio.ServicerContext) -> None:
        attached = AttachedSegments(self._shared_memory)
        task = asyncio.current_task()
        assert task is not None, "gRPC runs each call in a task of its own"
        data = await self._in_time(context.read())  # who opens a stream has something to say
        while data is not grpc.aio.EOF:
            frame = incoming(data)
            if frame.header.WhichOneof("piece") == "attach":
                reply = pb.Frame(attached=attached.attach(frame.header.attach))
                await self._in_time(context.write(reply.SerializeToString()))
            else:
                await self._call(frame, attached, context)
            data = await self._next_call(context, task)

    async def _next_call(self, context: grpc.aio.ServicerContext, task: asyncio.Task[None]) -> bytes:
        """The first frame of a call, whenever it comes: between its calls a worker computes."""
        if self._closing:
            raise Unavailable(STOPPING)
        self._idle.add(task)
        try:
            data: bytes = await context.read()
        except asyncio.CancelledError:
            if self._closing:
                raise Unavailable(STOPPING) from None
            raise
        finally:
            self._idle.discard(task)
        return data

    async def _call(self, frame: Incoming, attached: AttachedSegments, context: grpc.aio.ServicerContext) -> None:
        """Takes one call and answers it. What does not fit into single frames waits until there is room for it."""
        receiver = StreamReceiver(frame.data, attached.receiver())
        message = _request(from_frame(frame, receiver))
        region = attached.region(frame.header)
        if not receiver.nbytes and tensor_bytes(message) <= INLINE:
            try:
                answer = await self._entrance.step(message, INLINE, region)
            except AnswerTooLarge:
                pass
            else:
                await self._send(answer, StreamSender(region), context)
                return
        async with self._traffic.of(self._entrance.admit(message)):
            allocator: Allocator | None = region
            if receiver.nbytes:
                receiver.allocate()
                message = _request(from_frame(frame, receiver))
                await self._receive(receiver, context)
                if region is None:
                    allocator = ReusedArrays(message)
            answer = await self._entrance.step(message, None, allocator, admitted=True)
            await self._send(answer, StreamSender(region), context)

    async def _receive(self, receiver: StreamReceiver, context: grpc.aio.ServicerContext) -> None:
        """Fills the message's arrays from the chunks."""
        while not receiver.complete:
            data = await self._in_time(context.read())
            if data is grpc.aio.EOF:
                raise Malformed("the stream ends before all that its last header announces has come: it is not applied")
            frame = incoming(data)
            if not frame.chunk:
                got = frame.header.WhichOneof("piece") or ("nothing" if frame.chunk is None else "an empty one")
                raise Malformed(f"a chunk of data must follow in a transfer, got {got}")
            receiver.feed(frame.chunk)

    async def _send(self, answer: Answer, sender: StreamSender, context: grpc.aio.ServicerContext) -> None:
        with _our_fault(answer):
            header = to_frame(answer, sender)
        for frame in sender.frames(header):
            if len(frame) <= AT_ONCE:
                await context.write(frame)
            else:
                await self._in_time(context.write(frame))

    async def _in_time(self, step: Awaitable[_Result]) -> _Result:
        try:
            async with asyncio.timeout(self._patience):
                return await step
        except TimeoutError:
            raise TimedOut(f"the transfer stood still for {self._patience:g} s and was given up") from None


class _our_fault:  # noqa: N801 - used as a function
    """An answer that cannot be sent is no fault of who asked."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, InvalidMessage):
            name = type(self._answer).__name__
            raise InternalError(f"the server has no way to say its {name}: {error}") from error


def _parse(kind: type[_Proto], data: bytes) -> _Proto:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Malformed(f"{len(data):,} bytes that are no {kind.DESCRIPTOR.full_name}") from None


def _request(message: Request | Answer) -> Request:
    if type(message) not in ANSWERS:
        raise Malformed(f"{type(message).__name__} is an answer, and no request")
    return cast(Request, message)


async def _guarded(call: Awaitable[_Result], context: grpc.aio.ServicerContext) -> _Result:
    """The call's result; an error of it ends the call with the status, message and name that belong to it.

    The error's frames have all that came with the call. They are in a circle with it, and what `abort` raises is in one
    with gRPC's context: so they are let go before, or they would stay until Python happens to look for circles.
    """
    try:
        return await call
    except ParamServerError as error:
        log.info("refused %s: %s: %.500s", context.peer(), type(error).__name__, error)
        refusal = status_of(error)
        error.__traceback__ = None
    except grpc.aio.BaseError:
        raise  # the other side has gone: gRPC knows
    except Exception as fault:
        reference = secrets.token_hex(4)
        log.exception("internal error %s, on a call of %s", reference, context.peer())
        text = f"the server failed on this message: please report it, with what its log says under {reference}"
        refusal = status_of(InternalError(text))
        fault.__traceback__ = None
    await context.abort(*refusal)
    raise AssertionError("abort has raised")
