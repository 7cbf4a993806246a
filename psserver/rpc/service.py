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
from psserver.rpc.reception import Reception, unfinished_messages
from psserver.rpc.streams import Stream, Streams
from psserver.rpc.transfer_memory import AttachedSegments, ReusedArrays, SharedMemory
from psserver.runtime.executor import STOPPING_ERROR, AnswerTooLarge, Executor
from pswire.codec import check_size, decode, encode, from_frame, request_of, sender_of, to_frame
from pswire.errors import Malformed, Unavailable
from pswire.messages import Allocator, Request, Sender, StatusReport, tensor_bytes
from pswire.tensors.frames import Incoming, incoming
from pswire.tensors.shared_memory import SharedReceiver
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import MAX_INLINE_MESSAGE, InlineReceiver, InlineSender
from pswire.v1 import paramserver_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]

#: The service's full name, for health checks and reflection.
SERVICE_NAME: str = _SERVICE.full_name

_Result = TypeVar("_Result")


class Service:
    """Serves the methods of `paramserver.v1.ParameterServer`.

    Calls may have `traffic_limit` bytes in progress, and a message may take `timeout` seconds, or longer at
    `psserver.rpc.deadline.LEAST_RATE`. There are at most `max_calls` unary calls at a time. Workers of this host may
    attach memory of `shared`. The status has the warning of `exposure`.
    """

    def __init__(
        self,
        executor: Executor,
        guard: Guard,
        traffic_limit: int,
        timeout: float,
        shared: SharedMemory,
        *,
        max_calls: int = 10_000,
        exposure: str = "",
    ) -> None:
        self._executor, self._guard = executor, guard
        self._exposure = exposure
        self._shared = shared
        self._admission = Admission(traffic_limit, timeout)
        self._reception = Reception("members", max_calls, unfinished_messages(traffic_limit), timeout)
        self._streams = Streams()
        self._timeout = timeout

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
        account = context.peer()
        async with self._reception.message(context) as request:
            counted = len(request)
            self._admission.hold(account, counted)
            try:
                answer = await self._answer(kind, request)
                self._admission.count(account, len(answer))
                counted += len(answer)
                await self._in_time(context.write(answer))
            finally:
                self._admission.release(account, counted)

    async def _answer(self, kind: type[Proto], request: bytes) -> bytes:
        check_size(kind, len(request))
        try:
            proto = kind.FromString(request)
        except DecodeError:
            raise Malformed(f"{len(request):,} bytes that are not a {kind.DESCRIPTOR.full_name}") from None
        self._check_sender(proto)
        message = cast(Request, decode(proto, InlineReceiver()))
        answer = await self._executor.step(message, most=MAX_INLINE_MESSAGE)
        if self._exposure and isinstance(answer, StatusReport):
            answer = replace(answer, exposure=self._exposure)
        return encode(answer, InlineSender()).SerializeToString()

    async def _transfer(self, frames: object, context: grpc.aio.ServicerContext) -> None:
        attached = AttachedSegments(self._shared)
        try:
            with self._streams.open(context) as stream:
                while (data := await stream.next_call()) is not grpc.aio.EOF:
                    attached.settle()
                    frame = incoming(data)
                    self._note_member(frame, stream)
                    if frame.header.WhichOneof("piece") == "attach":
                        reply = pb.Frame(attached=attached.attach(frame.header.attach))
                        await self._in_time(context.write(reply.SerializeToString()))
                    else:
                        await self._call(frame, len(data), stream, attached, context)
        finally:
            attached.close()

    async def _call(
        self,
        frame: Incoming,
        nbytes: int,
        stream: Stream,
        attached: AttachedSegments,
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Serve one call, whose first frame has `nbytes`; larger messages and answers wait for admission."""
        receiver = StreamReceiver(frame.data, SharedReceiver(attached.memories))
        message = cast(Request, from_frame(frame, receiver))
        region = attached.region(frame.header)
        if not receiver.nbytes and tensor_bytes(message) <= MAX_INLINE_MESSAGE:
            self._admission.hold(stream.account, nbytes)
            try:
                answer = await self._executor.step(message, MAX_INLINE_MESSAGE, region)
                sender = StreamSender(region)
                header = to_frame(answer, sender)
                self._admission.count(stream.account, sender.nbytes)
                nbytes += sender.nbytes
                await self._send(header, sender, context)
                return
            except AnswerTooLarge:
                pass  # as a large one, below
            finally:
                self._admission.release(stream.account, nbytes)
        async with self._admission.reserve(stream.account, self._executor.admit(message)):
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
            answer = await self._executor.step(message, None, allocator)
            sender = StreamSender(region)
            await self._send(to_frame(answer, sender), sender, context)

    def _check_sender(self, proto: Proto) -> Sender | None:
        """The sender of a request; refuses nobody who takes part, before anything is made of the rest of it."""
        if (sender := sender_of(proto)) is not None:
            self._executor.shard.check_sender(sender)
        return sender

    def _note_member(self, frame: Incoming, stream: Stream) -> None:
        """Note whose calls a stream carries."""
        attaches = frame.header.WhichOneof("piece") == "attach"
        member = self._check_sender(frame.header.attach if attaches else request_of(frame))
        if member is not None:
            self._streams.belongs_to(stream, member)

    async def _send(self, header: pb.Frame, sender: StreamSender, context: grpc.aio.ServicerContext) -> None:
        deadline = Deadline(self._timeout)
        for frame in sender.frames(header):
            await deadline.wait(context.write(frame))
            deadline.passed(len(frame))

    async def _in_time(self, step: Awaitable[_Result]) -> _Result:
        return await Deadline(self._timeout).wait(step)
