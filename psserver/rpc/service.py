"""The gRPC service of a shard: decode, step, encode. All unary methods share one implementation.

A unary call carries its tensors inline. `Transfer` is a stream of calls. Each begins with a header, which is checked
against the shard before memory is allocated for the tensors it announces, and a call is applied only when all of it has
arrived. A failure ends one call, with an error of the paramserver family, and never the server.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message as Proto

from psjob.tracing.tracing import Tracing
from psserver.measurements import ADMISSION
from psserver.rpc.access import Access
from psserver.rpc.admission import Admission
from psserver.rpc.call_errors import CallErrors
from psserver.rpc.call_spans import METADATA_KEY, call_span
from psserver.rpc.channels import GrpcChannel, TransferChannel
from psserver.rpc.deadline import Deadline
from psserver.rpc.direct.connection import DirectConnection
from psserver.rpc.identity import OF_IDENTITIES, Claims, Identity
from psserver.rpc.reception import MIN_UNFINISHED, Reception, unfinished_messages
from psserver.rpc.status_answers import StatusAnswers
from psserver.rpc.streams import Streams
from psserver.rpc.transfer_memory import AttachedSegments, ReusedArrays, SharedMemory
from psserver.runtime.executor import MAX_ENTRIES_IN_LOOP, STOPPING_ERROR, AnswerTooLarge, Executor, is_large
from psserver.storage.records import Record, received
from pswire.codec import (
    check_size,
    count_entries,
    decode,
    encode,
    from_frame,
    is_of,
    parse,
    request_of,
    sender_of,
    to_frame,
)
from pswire.errors import ParamServerError, Unauthenticated, Unavailable
from pswire.limits import MAX_SMALL_REQUEST
from pswire.messages import (
    Allocator,
    Answer,
    DirectAddress,
    Joined,
    Renewed,
    Request,
    Status,
    StatusReport,
    tensor_bytes,
)
from pswire.tensors.frame import Incoming, SplitFrame
from pswire.tensors.shared_memory import Region, SharedReceiver
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import MAX_INLINE_MESSAGE, InlineReceiver, InlineSender
from pswire.tensors.wire import SLICE
from pswire.v1 import paramserver_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]

#: The service's full name, for health checks and reflection.
SERVICE_NAME: str = _SERVICE.full_name

#: Bytes of a request that is decoded in the event loop, however many entries it has: some 400 at most.
MAX_BYTES_DECODED_IN_LOOP = 8 << 10

#: Unary calls at the same time, of one member, and of one connection of strangers, who have no token yet, or ask
#: for the status.
CALLS_OF_A_MEMBER, CALLS_OF_A_STRANGER = 64, 32

#: Strangers together: the limit of calls divided by this; calls per second; seconds for their messages.
STRANGERS_PART, STRANGER_RATE, STRANGER_SECONDS = 40, 100.0, 5.0

_Result = TypeVar("_Result")


class Service:
    """Serves the methods of `paramserver.v1.ParameterServer`.

    With `access`, calls need a token of the right role. A Transfer belongs to the member that opens it. Calls may have
    `traffic_limit` bytes in progress, and a message may take `timeout` seconds, or longer at
    `psserver.rpc.deadline.LEAST_RATE`. Members have at most `max_calls` unary calls at a time. Members on this host may
    attach memory of `shared`. The status has the warning of `exposure`. With `tracing`, calls that name the span they
    belong to get one. Workers are told of the `direct` transport.
    """

    def __init__(
        self,
        executor: Executor,
        identity: Identity,
        call_errors: CallErrors,
        traffic_limit: int,
        timeout: float,
        shared: SharedMemory,
        *,
        access: Access | None = None,
        max_calls: int = 10_000,
        exposure: str = "",
        tracing: Tracing | None = None,
        direct: DirectAddress | None = None,
    ) -> None:
        self._direct = direct
        self._executor, self._identity, self._call_errors = executor, identity, call_errors
        self._access, self._exposure, self._tracing = access, exposure, tracing
        self._shared = shared
        self._measurements = executor.measurements
        self._admission = Admission(traffic_limit, timeout, self._measurements.waits[ADMISSION])
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
        self._status, self._pages = [StatusAnswers(self._report, executor.aside) for _ in range(2)]

    def tick(self) -> None:
        """End the streams of workers that are no longer members."""
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
            serve = self._transfer_by_grpc if method.client_streaming else unary
            if self._access is not None:
                serve = partial(self._access.serve, method.name, serve)
            methods[method.name] = grpc.stream_stream_rpc_method_handler(partial(self._call_errors.run, serve))
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    async def serve_direct(self, connection: DirectConnection) -> None:
        """Serve the Transfer of a direct connection, as one over gRPC."""
        serve: Callable[[Any, Any], Awaitable[None]] = self._transfer
        if self._access is not None:
            serve = partial(self._access.serve, "Transfer", serve)
        await self._call_errors.run(serve, None, connection, connection.refuse)

    async def _unary(self, kind: type[Proto], frames: object, context: grpc.aio.ServicerContext) -> None:
        caller = self._identity.caller(context, self._executor.shard)
        account = context.peer() if caller is None else caller.sender.worker
        reception = self._strangers if caller is None else self._members
        async with reception.message(context, account) as request:
            counted = len(request)
            self._admission.hold(account, counted)
            try:
                traceparent = "" if self._tracing is None else _traceparent(context)
                name = kind.__name__.removesuffix("Request")
                answer = await self._within_span(name, traceparent, self._answer(kind, request, caller))
                self._admission.count(account, len(answer))
                counted += len(answer)
                await self._in_time(context.write(answer))
            except ParamServerError as error:
                self._measurements.pushes["refused"] += kind is pb.PushRequest
                if caller is not None:
                    self._executor.events.note_refusal(caller.sender.worker, error)
                raise self._executor.explained(error) from None
            finally:
                self._admission.release(account, counted)

    async def _answer(self, kind: type[Proto], request: bytes, caller: Claims | None) -> bytes:
        began, measurements = perf_counter(), self._measurements
        check_size(kind, len(request))
        if caller is None and len(request) > MAX_SMALL_REQUEST:
            size = f"{kind.__name__} of {len(request):,} bytes"
            raise Unauthenticated(f"{size} from a caller that has not joined: join first")
        aside, proto = self._executor.aside, kind()
        await aside(parse, proto, request) if len(request) > SLICE else parse(proto, request)
        self._check_sender(proto, caller)
        large = _is_large(proto, len(request))
        decoded = await aside(decode, proto, InlineReceiver()) if large else decode(proto, InlineReceiver())
        if isinstance(decoded, Status):
            return await (self._pages if decoded.first_variable else self._status).answer(decoded)
        message = cast(Request, decoded)
        measurements.received.inline += tensor_bytes(message)
        answer = await self._step(message, caller, MAX_INLINE_MESSAGE)
        reply = await aside(_reply, answer) if is_large(answer) else _reply(answer)
        measurements.sent.inline += tensor_bytes(answer)
        measurements.answered(answer, perf_counter() - began)
        return reply

    async def _report(self, message: Status) -> Answer:
        report = await self._step(message, None, MAX_INLINE_MESSAGE)
        assert isinstance(report, StatusReport)
        return replace(report, exposure=self._exposure)

    async def _transfer_by_grpc(self, frames: object, context: grpc.aio.ServicerContext) -> None:
        await self._transfer(frames, GrpcChannel(context))

    async def _transfer(self, _: object, channel: TransferChannel) -> None:
        caller = self._identity.member(channel, self._executor.shard)
        account = caller.sender.worker
        hold, release = partial(self._admission.hold, account), partial(self._admission.release, account)
        attached = AttachedSegments(self._shared, account)
        try:
            with self._streams.open(caller.sender) as stream:
                while (frame := await stream.next_call(channel.receive(hold, release))) is not None:
                    await self._serve_frame(frame, caller, attached, channel)
        except ParamServerError as error:
            self._executor.events.note_refusal(account, error)
            raise self._executor.explained(error) from None
        finally:
            attached.close()

    async def _serve_frame(
        self, split: SplitFrame, caller: Claims, attached: AttachedSegments, channel: TransferChannel
    ) -> None:
        """Serve a call, or attach memory, by the first frame, whose bytes are counted; they are not afterwards."""
        began, nbytes = perf_counter(), split.nbytes
        try:
            if attached.offered is not None:
                attached.settle()
            large = split.head_bytes > SLICE
            frame = await self._executor.aside(split.parse, parse) if large else split.parse(parse)
            piece = frame.header.WhichOneof("piece") or "call"
            if piece == "attach":
                self._executor.shard.check_sender(caller.sender)
                StreamReceiver(frame.data, None, frame.follows).check_data()
                reply = pb.Frame(attached=attached.attach(frame.header.attach))
                await channel.send(reply, StreamSender(), Deadline(self._timeout))
                return
            counted, nbytes = nbytes, 0
            call = self._call(frame, counted, caller, attached, channel, began)
            try:
                if self._tracing is None:
                    await call
                else:
                    await self._within_span(piece.capitalize(), frame.header.traceparent, call)
            except ParamServerError:
                self._measurements.pushes["refused"] += piece == "push"
                raise
        finally:
            self._admission.release(caller.sender.worker, nbytes)

    async def _within_span(self, name: str, traceparent: str, call: Awaitable[_Result]) -> _Result:
        """The result of a call, which has a span if it names the one that it belongs to."""
        if self._tracing is None or not traceparent:
            return await call
        with call_span(self._tracing, name, traceparent, self._executor.shard.shard):
            return await call

    async def _call(
        self,
        frame: Incoming,
        frame_bytes: int,
        caller: Claims,
        attached: AttachedSegments,
        channel: TransferChannel,
        began: float,
    ) -> None:
        """Serve one call, with the size and time of its first frame; larger messages and answers wait for admission."""
        account, aside = caller.sender.worker, self._executor.aside
        try:
            proto = request_of(frame)
            self._check_sender(proto, caller)
            shared = SharedReceiver(attached.memories) if attached.memories else None
            receiver = StreamReceiver(frame.data, shared, frame.follows)
            large = _is_large(proto, frame.nbytes)
            message, nbytes = await aside(_read, frame, receiver) if large else _read(frame, receiver)
            streamed = receiver.nbytes if frame.data is None else len(frame.data)
            in_place, in_memory = (0, 0) if shared is None else (shared.tensors, shared.nbytes)
            self._measurements.received.add(nbytes - streamed - in_memory, streamed, in_memory)
            place = frame.header.HasField("answer_region")
            region = attached.region(frame.header.answer_region) if place else None
            if not receiver.nbytes and nbytes <= MAX_INLINE_MESSAGE:
                with suppress(AnswerTooLarge):
                    journaled = self._executor.borrows_arrays and not in_place
                    record = received(frame) if journaled else None
                    answer = await self._step(message, caller, MAX_INLINE_MESSAGE, region, record)
                    await self._send(answer, region, account, channel, began)
                    return
        finally:
            self._admission.release(account, frame_bytes)
        async with self._admission.reserve(account, await self._executor.admit(message)):
            allocator: Allocator | None = region
            if receiver.nbytes:
                message = await aside(_allocate, frame, receiver) if large else _allocate(frame, receiver)
                await channel.fill(receiver, Deadline(self._timeout), aside if large else None)
                if region is None and not self._executor.borrows_arrays:
                    allocator = ReusedArrays(message)
            answer = await self._step(message, caller, None, allocator)
            await self._send(answer, region, None, channel, began)

    def _check_sender(self, proto: Proto, caller: Claims | None) -> None:
        """Reject a request from a non-member before decoding its body."""
        if caller is not None and is_of(proto, caller.sender):
            self._executor.shard.check_sender(caller.sender)
        elif (sender := sender_of(proto)) is not None:
            self._identity.check_sender(sender, caller)
            self._executor.shard.check_sender(sender)

    async def _step(
        self,
        message: Request,
        caller: Claims | None,
        most: int | None,
        allocator: Allocator | None = None,
        record: Record | None = None,
    ) -> Answer:
        """The shard's answer to a caller's message, whose `record` may have come with it."""
        if isinstance(message, OF_IDENTITIES):
            self._identity.check(message, caller)
            answer = await self._executor.step(self._identity.hashed(message), most, allocator)
            answer = self._identity.with_token(message, answer)
        else:
            answer = await self._executor.step(message, most, allocator, received=record)
        return replace(answer, direct=self._direct) if isinstance(answer, Joined | Renewed) else answer

    async def _send(
        self,
        answer: Answer,
        region: Region | None,
        account: str | None,
        channel: TransferChannel,
        began: float,
    ) -> None:
        """Send an answer, whose bytes count under the account; None: they do already. Its call `began` then."""
        sender = StreamSender(region)
        header = await self._executor.aside(to_frame, answer, sender) if is_large(answer) else to_frame(answer, sender)
        nbytes = sender.nbytes
        self._measurements.sent.add(sender.inline_bytes, nbytes, sender.shared_bytes)
        counted = 0 if account is None else nbytes
        self._admission.count(account or "", counted)
        try:
            await channel.send(header, sender, Deadline(self._timeout))
        finally:
            self._admission.release(account or "", counted)
        self._measurements.answered(answer, perf_counter() - began)

    async def _in_time(self, step: Awaitable[_Result]) -> _Result:
        return await Deadline(self._timeout).wait(step)


def _traceparent(context: grpc.aio.ServicerContext) -> str:
    """The span that a unary call belongs to; "" if none is named."""
    return next((str(value) for key, value in context.invocation_metadata() or () if key == METADATA_KEY), "")


def _is_large(proto: Proto, nbytes: int) -> bool:
    """True if a request of `nbytes` has too many entries for the event loop."""
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
