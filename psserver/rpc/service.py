"""The gRPC service of a shard: decode, step, encode. All unary methods share one implementation.

A unary call carries its tensors inline. `Transfer` is a stream of calls. Each begins with a header, which is checked
against the shard before memory is allocated for the tensors it announces, and a call is applied only when all of it has
arrived. A failure ends one call, with an error of the paramserver family, and never the server.
"""

from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from psserver.rpc.admission import Admission
from psserver.rpc.deadline import Deadline
from psserver.rpc.guard import Guard
from psserver.rpc.identity import Claims, Identity
from psserver.rpc.reception import MIN_UNFINISHED, Reception, unfinished_messages
from psserver.rpc.status_answers import StatusAnswers
from psserver.rpc.streams import Streams
from psserver.rpc.transfer_memory import AttachedSegments, ReusedArrays, SharedMemory
from psserver.runtime.executor import STOPPING_ERROR, AnswerTooLarge, Executor
from pswire.codec import check_size, decode, encode, from_frame, request_of, sender_of, to_frame
from pswire.errors import Malformed, Unavailable
from pswire.messages import Allocator, Answer, Request, Status, StatusReport, tensor_bytes
from pswire.tensors.frames import Incoming, incoming
from pswire.tensors.shared_memory import SharedReceiver
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import MAX_INLINE_MESSAGE, InlineReceiver, InlineSender
from pswire.v1 import paramserver_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]

#: The service's full name, for health checks and reflection.
SERVICE_NAME: str = _SERVICE.full_name

#: Unary calls at the same time, of one member, and of one connection of strangers: those who have no token yet, or ask
#: for the status.
CALLS_OF_A_MEMBER, CALLS_OF_A_STRANGER = 64, 32

#: Strangers together have the limit of calls divided by this, and so many calls per second; seconds for their messages.
STRANGERS_PART, STRANGER_RATE, STRANGER_SECONDS = 40, 100.0, 5.0

_Result = TypeVar("_Result")


class Service:
    """Serves the methods of `paramserver.v1.ParameterServer`.

    A Transfer belongs to the member that opens it. Calls may have `traffic_limit` bytes in progress, and a message may
    take `timeout` seconds, or longer at `psserver.rpc.deadline.LEAST_RATE`. Members have at most `max_calls` unary
    calls at a time. Members on this host may attach memory of `shared`. The status has the warning of `exposure`.
    """

    def __init__(
        self,
        executor: Executor,
        identity: Identity,
        guard: Guard,
        traffic_limit: int,
        timeout: float,
        shared: SharedMemory,
        *,
        max_calls: int = 10_000,
        exposure: str = "",
    ) -> None:
        self._executor, self._identity, self._guard = executor, identity, guard
        self._exposure = exposure
        self._shared = shared
        self._admission = Admission(traffic_limit, timeout)
        self._members = Reception("members", max_calls, unfinished_messages(traffic_limit), timeout, CALLS_OF_A_MEMBER)
        self._strangers = Reception(
            "strangers",
            max(1, max_calls // STRANGERS_PART),
            MIN_UNFINISHED,
            STRANGER_SECONDS,
            CALLS_OF_A_STRANGER,
            rate=STRANGER_RATE,
        )
        self._streams = Streams()
        self._timeout = timeout
        self._status, self._pages = StatusAnswers(self._report), StatusAnswers(self._report)

    def tick(self) -> None:
        """End the streams of workers that are no members any more."""
        self._streams.close_refused(self._executor.shard.check_sender)

    def close(self) -> None:
        """End streams between two calls; others end after their call."""
        self._streams.close(Unavailable(STOPPING_ERROR))

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers of all methods, for `grpc.aio.Server.add_generic_rpc_handlers`.

        They take and return bytes: gRPC's own parsing would answer invalid bytes with "unknown error". To gRPC all are
        streams, also the unary ones, which are the same on the wire: their handlers begin before the message is there,
        and can bound the memory and the time that it takes.
        """
        methods = {}
        for method in _SERVICE.methods:
            unary = partial(self._unary, getattr(pb, method.input_type.name))
            serve = partial(self._guard.run, self._transfer if method.client_streaming else unary)
            methods[method.name] = grpc.stream_stream_rpc_method_handler(serve)
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    async def _unary(self, kind: type[Proto], frames: object, context: grpc.aio.ServicerContext) -> None:
        caller = self._identity.caller(context)
        account = context.peer() if caller is None else caller.sender.worker
        reception = self._strangers if caller is None else self._members
        async with reception.message(context, account) as request:
            counted = len(request)
            self._admission.hold(account, counted)
            try:
                answer = await self._answer(kind, request, caller)
                self._admission.count(account, len(answer))
                counted += len(answer)
                await self._in_time(context.write(answer))
            finally:
                self._admission.release(account, counted)

    async def _answer(self, kind: type[Proto], request: bytes, caller: Claims | None) -> bytes:
        check_size(kind, len(request))
        try:
            proto = kind.FromString(request)
        except DecodeError:
            raise Malformed(f"{len(request):,} bytes that are not a {kind.DESCRIPTOR.full_name}") from None
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
            with self._streams.open(caller.sender, context) as stream:
                while (data := await stream.next_call()) is not grpc.aio.EOF:
                    attached.settle()
                    frame = incoming(data)
                    if frame.header.WhichOneof("piece") == "attach":
                        self._executor.shard.check_sender(caller.sender)
                        reply = pb.Frame(attached=attached.attach(frame.header.attach))
                        await self._in_time(context.write(reply.SerializeToString()))
                    else:
                        await self._call(frame, len(data), caller, attached, context)
        finally:
            attached.close()

    async def _call(
        self,
        frame: Incoming,
        nbytes: int,
        caller: Claims,
        attached: AttachedSegments,
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Serve one call, whose first frame has `nbytes`; larger messages and answers wait for admission."""
        self._check_sender(request_of(frame), caller)
        receiver = StreamReceiver(frame.data, SharedReceiver(attached.memories))
        message = cast(Request, from_frame(frame, receiver))
        region, account = attached.region(frame.header), caller.sender.worker
        if not receiver.nbytes and tensor_bytes(message) <= MAX_INLINE_MESSAGE:
            self._admission.hold(account, nbytes)
            try:
                answer = await self._step(message, caller, MAX_INLINE_MESSAGE, region)
                sender = StreamSender(region)
                header = to_frame(answer, sender)
                self._admission.count(account, sender.nbytes)
                nbytes += sender.nbytes
                await self._send(header, sender, context)
                return
            except AnswerTooLarge:
                pass  # as a large one, below
            finally:
                self._admission.release(account, nbytes)
        async with self._admission.reserve(account, self._executor.admit(message)):
            allocator: Allocator | None = region
            if receiver.nbytes:
                receiver.allocate()
                message = cast(Request, from_frame(frame, receiver))
                deadline = Deadline(self._timeout)
                while not receiver.complete:
                    data = await deadline.wait(context.read())
                    if data is grpc.aio.EOF:
                        raise Malformed("the stream ended before the data that its header announced: not applied")
                    receiver.feed(incoming(data))
                    deadline.passed(len(data))
                if region is None and not self._executor.borrows_arrays:
                    allocator = ReusedArrays(message)
            answer = await self._step(message, caller, None, allocator)
            sender = StreamSender(region)
            await self._send(to_frame(answer, sender), sender, context)

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

    async def _send(self, header: pb.Frame, sender: StreamSender, context: grpc.aio.ServicerContext) -> None:
        deadline = Deadline(self._timeout)
        for frame in sender.frames(header):
            await deadline.wait(context.write(frame))
            deadline.passed(len(frame))

    async def _in_time(self, step: Awaitable[_Result]) -> _Result:
        return await Deadline(self._timeout).wait(step)
