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
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from psserver.rpc.admission import Admission
from psserver.rpc.identity import Claims, Identity
from psserver.rpc.status_answers import StatusAnswers
from psserver.rpc.transfer_memory import AttachedSegments, ReusedArrays, SharedMemory
from psserver.runtime.executor import STOPPING_ERROR, AnswerTooLarge, Executor
from pswire.channel import status_of
from pswire.codec import check_size, decode, encode, from_frame, request_of, sender_of, to_frame
from pswire.errors import InternalError, Malformed, ParamServerError, TimedOut, Unavailable
from pswire.messages import Allocator, Answer, Request, Status, StatusReport, tensor_bytes
from pswire.tensors.frames import Incoming, incoming
from pswire.tensors.shared_memory import SharedReceiver
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import MAX_INLINE_MESSAGE, InlineReceiver, InlineSender
from pswire.v1 import paramserver_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]

#: The service's full name, for health checks and reflection.
SERVICE_NAME: str = _SERVICE.full_name

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
        try:
            proto = kind.FromString(request)
        except DecodeError:
            raise Malformed(f"{len(request):,} bytes that are not a {kind.DESCRIPTOR.full_name}") from None
        caller = self._identity.caller(context)
        self._check_sender(proto, caller)
        message = cast(Request, decode(proto, InlineReceiver()))
        if isinstance(message, Status):
            return await (self._pages if message.first_variable else self._status).answer(message)
        answer = await self._step(message, caller, MAX_INLINE_MESSAGE)
        return encode(answer, InlineSender()).SerializeToString()

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
                attached.settle()
                frame = incoming(data)
                if frame.header.WhichOneof("piece") == "attach":
                    self._executor.shard.check_sender(caller.sender)
                    reply = pb.Frame(attached=attached.attach(frame.header.attach))
                    await self._in_time(context.write(reply.SerializeToString()))
                else:
                    await self._call(frame, caller, attached, context)
                data = await self._next_call(context)
        finally:
            attached.close()

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
        self._check_sender(request_of(frame), caller)
        receiver = StreamReceiver(frame.data, SharedReceiver(attached.memories))
        message = cast(Request, from_frame(frame, receiver))
        region = attached.region(frame.header)
        if not receiver.nbytes and tensor_bytes(message) <= MAX_INLINE_MESSAGE:
            with suppress(AnswerTooLarge):
                answer = await self._step(message, caller, MAX_INLINE_MESSAGE, region)
                await self._send(answer, StreamSender(region), context)
                return
        async with self._admission.reserve(self._executor.admit(message)):
            allocator: Allocator | None = region
            if receiver.nbytes:
                receiver.allocate()
                message = cast(Request, from_frame(frame, receiver))
                while not receiver.complete:
                    data = await self._in_time(context.read())
                    if data is grpc.aio.EOF:
                        raise Malformed("the stream ended before the data that its header announced: not applied")
                    receiver.feed(incoming(data))
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
        for frame in sender.frames(to_frame(answer, sender)):
            await self._in_time(context.write(frame))

    async def _in_time(self, step: Awaitable[_Result]) -> _Result:
        try:
            async with asyncio.timeout(self._timeout):
                return await step
        except TimeoutError:
            raise TimedOut(f"the transfer stalled for {self._timeout:g} s and was aborted") from None


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
