"""The gRPC service of a shard: decode, step, encode. All unary methods share one implementation.

A unary call carries its tensors inline. `Transfer` is a stream of calls. Each begins with a header, which is checked
against the shard before memory is allocated for the tensors it announces, and a call is applied only when all of it has
arrived. A failure ends one call, with an error of the paramserver family, and never the server.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message as Proto

from psserver.rpc import access
from psserver.rpc.admission import Admission
from psserver.rpc.identity import Claims, Identity
from psserver.rpc.status_answers import StatusAnswers
from psserver.rpc.transfer_memory import AttachedSegments, ReusedArrays, SharedMemory
from psserver.runtime.executor import MAX_ENTRIES_IN_LOOP, STOPPING_ERROR, AnswerTooLarge, Executor, is_large
from pswire.channel import status_of
from pswire.codec import check_size, count_entries, decode, encode, from_frame, parse, request_of, sender_of, to_frame
from pswire.errors import InternalError, Malformed, ParamServerError, TimedOut, Unauthenticated, Unavailable
from pswire.limits import MAX_SMALL_REQUEST
from pswire.messages import Allocator, Answer, Request, Status, StatusReport, tensor_bytes
from pswire.tensors.frames import Incoming, incoming, split
from pswire.tensors.shared_memory import SharedReceiver
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import MAX_INLINE_MESSAGE, InlineReceiver, InlineSender
from pswire.tensors.wire import SLICE
from pswire.v1 import paramserver_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]

#: The service's full name, for health checks and reflection.
SERVICE_NAME: str = _SERVICE.full_name

#: Bytes of a request that is decoded in the event loop, however many entries it has: some 400 at most.
MAX_BYTES_DECODED_IN_LOOP = 8 << 10

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Service:
    """Serves the methods of `paramserver.v1.ParameterServer`.

    A Transfer belongs to the member that opens it. Transfers may have `traffic_limit` bytes in progress, and one may
    stall for `timeout` seconds before it is aborted. Members on this host may attach memory of `shared`. The status has
    the warning of `exposure`.
    """

    def __init__(
        self,
        executor: Executor,
        identity: Identity,
        traffic_limit: int,
        timeout: float,
        shared: SharedMemory,
        *,
        exposure: str = "",
    ) -> None:
        self._executor, self._identity = executor, identity
        self._exposure = exposure
        self._shared = shared
        self._admission = Admission(traffic_limit, timeout)
        self._timeout = timeout
        self._idle: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._status, self._pages = StatusAnswers(self._report), StatusAnswers(self._report)

    def close(self) -> None:
        """End streams between two calls; others end after their call."""
        self._closing = True
        for task in self._idle:
            task.cancel()

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers of all methods, for `grpc.aio.Server.add_generic_rpc_handlers`.

        They take and return bytes: gRPC's own parsing would answer invalid bytes with "unknown error".
        """
        methods = {}
        for method in _SERVICE.methods:
            if method.client_streaming:
                methods[method.name] = grpc.stream_stream_rpc_method_handler(partial(_guarded, self._transfer))
            else:
                serve = partial(_guarded, partial(self._unary, getattr(pb, method.input_type.name)))
                methods[method.name] = grpc.unary_unary_rpc_method_handler(serve)
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    async def _unary(self, kind: type[Proto], request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        check_size(kind, len(request))
        caller = self._identity.caller(context)
        if caller is None and len(request) > MAX_SMALL_REQUEST:
            raise Unauthenticated(f"a {kind.__name__} of {len(request):,} bytes of nobody who has joined: join first")
        aside, proto = self._executor.aside, kind()
        await aside(parse, proto, request) if len(request) > SLICE else parse(proto, request)
        self._check_sender(proto, caller)
        large = _is_large(proto, len(request))
        decoded = await aside(decode, proto, InlineReceiver()) if large else decode(proto, InlineReceiver())
        if isinstance(decoded, Status):
            return await (self._pages if decoded.first_variable else self._status).answer(decoded)
        answer = await self._step(cast(Request, decoded), caller, MAX_INLINE_MESSAGE)
        return await aside(_reply, answer) if is_large(answer) else _reply(answer)

    async def _report(self, message: Status) -> Answer:
        report = await self._step(message, None, MAX_INLINE_MESSAGE)
        assert isinstance(report, StatusReport)
        return replace(report, exposure=self._exposure)

    async def _transfer(self, frames: object, context: grpc.aio.ServicerContext) -> None:
        caller = self._identity.member(context, self._executor.shard)
        attached = AttachedSegments(self._shared, caller.sender.worker)
        try:
            data = await self._in_time(context.read())
            while data is not grpc.aio.EOF:
                access.caller.get().check_valid()
                attached.settle()
                frame = await self._frame(data)
                if frame.header.WhichOneof("piece") == "attach":
                    self._executor.shard.check_sender(caller.sender)
                    reply = pb.Frame(attached=attached.attach(frame.header.attach))
                    await self._in_time(context.write(reply.SerializeToString()))
                else:
                    await self._call(frame, caller, attached, context)
                data = await self._next_call(context)
        finally:
            attached.close()

    async def _frame(self, data: bytes) -> Incoming:
        """The first frame of a call."""
        parts = split(data)
        return await self._executor.aside(parts.parse, parse) if parts.head_bytes > SLICE else parts.parse(parse)

    async def _next_call(self, context: grpc.aio.ServicerContext) -> bytes:
        """The first frame of the next call, without a timeout: between its calls a worker computes."""
        if self._closing:
            raise Unavailable(STOPPING_ERROR)
        task = asyncio.current_task()
        assert task is not None, "gRPC runs each call in a task of its own"
        self._idle.add(task)
        try:
            data: bytes = await context.read()
        except asyncio.CancelledError:
            if self._closing:
                raise Unavailable(STOPPING_ERROR) from None
            raise
        finally:
            self._idle.discard(task)
        return data

    async def _call(
        self, frame: Incoming, caller: Claims, attached: AttachedSegments, context: grpc.aio.ServicerContext
    ) -> None:
        """Serve one call; larger messages and answers wait for admission."""
        proto = request_of(frame)
        self._check_sender(proto, caller)
        receiver = StreamReceiver(frame.data, SharedReceiver(attached.memories))
        aside, large = self._executor.aside, _is_large(proto, frame.nbytes)
        message, nbytes = await aside(_read, frame, receiver) if large else _read(frame, receiver)
        region = attached.region(frame.header)
        if not receiver.nbytes and nbytes <= MAX_INLINE_MESSAGE:
            with suppress(AnswerTooLarge):
                answer = await self._step(message, caller, MAX_INLINE_MESSAGE, region)
                await self._send(answer, StreamSender(region), context)
                return
        async with self._admission.reserve(await self._executor.admit(message)):
            allocator: Allocator | None = region
            if receiver.nbytes:
                message = await aside(_allocate, frame, receiver) if large else _allocate(frame, receiver)
                while not receiver.complete:
                    data = await self._in_time(context.read())
                    if data is grpc.aio.EOF:
                        raise Malformed("the stream ended before the data that its header announced: not applied")
                    chunk = incoming(data)
                    await aside(receiver.feed, chunk) if large else receiver.feed(chunk)
                if region is None and not self._executor.borrows_arrays:
                    allocator = ReusedArrays(message)
            answer = await self._step(message, caller, None, allocator)
            await self._send(answer, StreamSender(region), context)

    def _check_sender(self, proto: Proto, caller: Claims | None) -> None:
        """Refuse a request of nobody who takes part, before anything is made of the rest of it."""
        if (sender := sender_of(proto)) is not None:
            self._identity.check_sender(sender, caller)
            self._executor.shard.check_sender(sender)

    async def _step(
        self, message: Request, caller: Claims | None, most: int | None, allocator: Allocator | None = None
    ) -> Answer:
        """The shard's answer to a caller's message."""
        self._identity.check(message, caller, self._executor.shard)
        answer = await self._executor.step(self._identity.hashed(message), most, allocator)
        return self._identity.proved(message, answer, self._executor.shard)

    async def _send(self, answer: Answer, sender: StreamSender, context: grpc.aio.ServicerContext) -> None:
        header = await self._executor.aside(to_frame, answer, sender) if is_large(answer) else to_frame(answer, sender)
        for frame in sender.frames(header):
            await self._in_time(context.write(frame))

    async def _in_time(self, step: Awaitable[_Result]) -> _Result:
        try:
            async with asyncio.timeout(self._timeout):
                return await step
        except TimeoutError:
            raise TimedOut(f"the transfer stalled for {self._timeout:g} s and was aborted") from None


def _is_large(proto: Proto, nbytes: int) -> bool:
    """Whether a request of so many bytes has too many entries for the event loop."""
    return nbytes > MAX_BYTES_DECODED_IN_LOOP and count_entries(proto) > MAX_ENTRIES_IN_LOOP


def _reply(answer: Answer) -> bytes:
    return encode(answer, InlineSender()).SerializeToString()


def _read(frame: Incoming, receiver: StreamReceiver) -> tuple[Request, int]:
    """The request of a frame, and the bytes of its arrays."""
    message = cast(Request, from_frame(frame, receiver))
    return message, tensor_bytes(message)


def _allocate(frame: Incoming, receiver: StreamReceiver) -> Request:
    """The request of a frame, with memory for its arrays."""
    receiver.allocate()
    return cast(Request, from_frame(frame, receiver))


async def _guarded(
    serve: Callable[[Any, grpc.aio.ServicerContext], Awaitable[_Result]],
    request: Any,  # noqa: ANN401 - bytes, or gRPC's iterator of a stream
    context: grpc.aio.ServicerContext,
) -> _Result:
    """The call's result; an error ends the call with its status, message and name.

    The error's frames refer to all that came with the call, and are in a reference cycle with it, as the exception of
    `abort` is with gRPC's context. So the traceback is dropped first, or that memory would stay until a garbage
    collection.
    """
    try:
        return await serve(request, context)
    except ParamServerError as error:
        log.info("refused %s: %s: %.500s", context.peer(), type(error).__name__, error)
        refusal = status_of(error)
        error.__traceback__ = None
    except grpc.aio.BaseError:
        raise  # the worker has disconnected: gRPC knows
    except Exception as fault:
        reference = secrets.token_hex(4)
        log.exception("internal error %s, on a call of %s", reference, context.peer())
        text = f"the server failed on this message: please report it, with entry {reference} of its log"
        refusal = status_of(InternalError(text))
        fault.__traceback__ = None
    await context.abort(*refusal)
    raise AssertionError("abort has raised")
