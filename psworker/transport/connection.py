"""The connection to one server: unary calls, and calls with tensors on streams that stay open.

What arrives is checked before memory is allocated for it. No retries: the client handles them. May import pswire, the
other modules of this folder and grpc.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future as ThreadFuture
from dataclasses import replace
from typing import Any, NoReturn

import grpc
import numpy as np

from pswire.channel import error_from, open_channel, timeout_message
from pswire.codec import decode, encode, from_frame, to_frame
from pswire.errors import InternalError, Malformed, ParamServerError, TimedOut, TooLarge, Unavailable
from pswire.messages import ANSWERS, Answer, Assign, Pull, Pulled, Push, Pushed, Register, Request, Take
from pswire.messages.sizes import arrays, most_answer_sizes, tensor_bytes
from pswire.tensors.frames import incoming
from pswire.tensors.inline import InlineReceiver, InlineSender
from pswire.tensors.segments import DATA_OFFSET, Segment
from pswire.tensors.shared_memory import SharedSender, bytes_needed
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import MAX_INLINE_MESSAGE
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub
from psworker.transport import Future
from psworker.transport.deadlines import Deadlines
from psworker.transport.shared_memory import AnswerReceiver
from psworker.transport.transfer_stream import TransferStream

logger = logging.getLogger(__name__)

#: Messages of every training step, which go on streams.
_ON_STREAMS = (Register, Pull, Push, Assign, Take)

#: Seconds that a server has to answer the first offer of shared memory.
PROBE_TIMEOUT = 2.0

#: Bytes of tensors from which shared memory is faster than the frame that describes them.
MIN_SHARED_BYTES = 16 << 10

#: The tensor transports, as `Transport.tensor_transport` names them.
SHARED_MEMORY, GRPC = "shared memory", "gRPC"


class Connection:
    """The connection to one server, and the specs of the variables registered there. Thread-safe.

    There is one stream per concurrent call; `_lock` guards the idle streams and the status of shared memory.
    Arguments are as of `GrpcTransport`; `deadlines` end its calls.
    """

    def __init__(self, address: str, max_bytes: int, deadlines: Deadlines, shared_memory: bool) -> None:
        self.address = address
        self.max_bytes = max_bytes
        self.deadlines = deadlines
        self._channel = open_channel(address)
        stub = ParameterServerStub(self._channel)  # type: ignore[no-untyped-call]
        self._unary: dict[type[Request], Any] = {kind: getattr(stub, kind.__name__) for kind in ANSWERS}
        self._transfer = self._channel.stream_stream("/paramserver.v1.ParameterServer/Transfer")  # of bytes
        self._specs: dict[str, TensorSpec] = {}
        self._lock = threading.Lock()
        self._idle: list[TransferStream] = []
        self._closed = False
        self._share = shared_memory
        self._tensor_transport = "" if shared_memory else GRPC
        self._probed = False

    def call(self, message: Request, timeout: float) -> Future[Answer]:
        """As `Transport.call`."""
        if not isinstance(message, _ON_STREAMS):
            return Future(lambda: self._unary_call(message, timeout))
        try:
            return Future(TransferCall(self, message, timeout).result)
        except (ParamServerError, ValueError) as error:
            failure = error.with_traceback(None)  # which has this frame, and so itself
            return Future(lambda: self._fail(failure))

    def close(self) -> None:
        """Ends all calls."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.end()
        self._channel.close()

    def tensor_transport(self) -> str:
        """As `Transport.tensor_transport`; the first call asks the server, later ones know it from calls."""
        with self._lock:
            probed, self._probed = self._probed, True
            if self._tensor_transport or self._closed or probed:
                return self._tensor_transport
        stream = self.stream()
        deadline = self.deadlines.set(PROBE_TIMEOUT, stream.cancel)
        try:
            stream.probe()
        except (grpc.RpcError, ParamServerError, ValueError):
            stream.end()
            return ""
        finally:
            self.deadlines.drop(deadline)
        self.keep(stream)
        return self._tensor_transport

    def _unary_call(self, message: Request, timeout: float) -> Answer:
        deadline = None
        try:
            call = self._unary[type(message)].future(encode(message, InlineSender()))
            deadline = self.deadlines.set(timeout, call.cancel)
            return _checked(message, decode(call.result(), InlineReceiver()))
        except grpc.FutureCancelledError:
            if deadline is not None and deadline.passed:
                raise TimedOut(timeout_message(self.address)) from None
            raise Unavailable(f"the call to {self.address} was interrupted: its connection was closed") from None
        except (grpc.RpcError, ValueError) as error:
            self._fail(error)
        finally:
            if deadline is not None:
                self.deadlines.drop(deadline)

    def _fail(self, error: Exception) -> NoReturn:
        """Raises an error of this connection as one of ours."""
        if isinstance(error, grpc.RpcError):
            raise error_from(error, self.address) from error
        if isinstance(error, ValueError):  # gRPC's answer to a call on a closed channel
            raise InternalError(f"no call to {self.address} is possible after close(): {error}") from error
        raise error

    # --- for its calls --------------------------------------------------------------------------------------------

    def stream(self) -> TransferStream:
        """An idle stream, or a new one."""
        with self._lock:
            while self._idle:
                stream = self._idle.pop()
                if stream.alive:
                    return stream
                stream.end()
            share = self._share and self._tensor_transport != GRPC
        return TransferStream(self._transfer, share=share)

    def keep(self, stream: TransferStream) -> None:
        """Takes back a stream whose call has succeeded."""
        with self._lock:
            if self._tensor_transport != GRPC:
                self._note_tensor_transport(stream)
            if not self._closed:
                self._idle.append(stream)
                return
        stream.end()

    def _note_tensor_transport(self, stream: TransferStream) -> None:
        refused = "" if stream.pool is None else stream.pool.refused
        if stream.pool is None or refused:
            self._tensor_transport = GRPC
        elif stream.pool.count:
            self._tensor_transport = SHARED_MEMORY
        if refused:
            logger.info("no shared memory with the server at %s, so tensors go by gRPC: %s", self.address, refused)

    def answer_sizes(self, message: Request) -> list[int] | None:
        """The largest size of each value of the answer, in bytes; None if a variable was not registered here."""
        if isinstance(message, Register):
            self._specs.update({one.spec.name: one.spec for one in message.declarations})
        try:
            return most_answer_sizes(message, self._specs.__getitem__)
        except KeyError:
            return None


class TransferCall:
    """One call on a stream: sent when it is made, answered by `result`.

    An answer in chunks is received in another thread, because the server would otherwise have to wait; an answer in a
    single frame or in shared memory has nothing to wait for.
    """

    def __init__(self, connection: Connection, message: Request, timeout: float) -> None:
        self._connection, self._message = connection, message
        self._sizes = connection.answer_sizes(message)
        self._segments: list[Segment] = []
        self._streamed = 0  # bytes of the answer's values that do not come in shared memory
        self._ahead: ThreadFuture[Answer] | None = None
        self._stream = connection.stream()
        self._deadline = connection.deadlines.set(timeout, self._stream.cancel)
        try:
            self._stream.send(self._frames())
            if self._streamed > MAX_INLINE_MESSAGE:
                self._ahead = self._stream.helper.submit(self._receive)
        except BaseException as error:
            self._failed(error)
            raise

    def result(self) -> Answer:
        """The answer; see `GrpcTransport.call` for its errors."""
        try:
            answer = self._receive() if self._ahead is None else self._ahead.result()
        except BaseException as error:
            self._failed(error)
            raise
        self._connection.deadlines.drop(self._deadline)
        self._connection.keep(self._stream)
        return answer

    def _failed(self, error: BaseException) -> None:
        """Ends the stream; raises an error of gRPC as one of ours."""
        self._stream.end()
        self._ahead = None  # it has the error, whose traceback has this call
        self._connection.deadlines.drop(self._deadline)
        if isinstance(error, grpc.RpcError):
            if self._deadline.passed:
                raise TimedOut(timeout_message(self._connection.address)) from error
            raise error_from(error, self._connection.address) from error

    # --- the request ----------------------------------------------------------------------------------------------

    def _frames(self) -> Iterator[bytes]:
        header = self._in_shared_memory()
        if header is not None:
            self._provide_region(header)
            return iter((header.SerializeToString(),))
        sender = StreamSender()
        header = to_frame(self._message, sender)
        self._provide_region(header)
        return sender.frames(header)

    def _in_shared_memory(self) -> pb.Frame | None:
        """The frame of a message whose tensors are in shared memory; None if they are too small or too large for it."""
        sizes = [array.nbytes for array in arrays(self._message)] if self._stream.pool is not None else []
        segment = self._segment(bytes_needed(sizes)) if sum(sizes) >= MIN_SHARED_BYTES else None
        if segment is None:
            return None
        return to_frame(self._message, SharedSender(segment.memory, segment.number))

    def _provide_region(self, header: pb.Frame) -> None:
        """Provides shared memory for the values of the answer, if they are large enough."""
        nbytes = bytes_needed(self._sizes or ())
        segment = self._segment(nbytes) if nbytes >= MIN_SHARED_BYTES else None
        if segment is None:
            self._streamed = nbytes
        else:
            region = header.answer_region
            region.segment, region.offset, region.nbytes = segment.number, DATA_OFFSET, segment.nbytes - DATA_OFFSET

    def _segment(self, nbytes: int) -> Segment | None:
        segment = None if self._stream.pool is None else self._stream.pool.take(nbytes)
        if segment is not None:
            self._segments.append(segment)
        return segment

    # --- the answer -----------------------------------------------------------------------------------------------

    def _receive(self) -> Answer:
        """The answer. Nothing is allocated before all that it announces has been checked."""
        address, pool = self._connection.address, self._stream.pool
        frame = next(self._stream.answers, None)
        if frame is None:
            raise Malformed(f"the server at {address} ended the stream without an answer")
        shared = None if pool is None else AnswerReceiver(self._segments, pool)
        first = incoming(frame)
        receiver = StreamReceiver(first.data, shared)
        answer = _checked(self._message, from_frame(first, receiver))
        if receiver.nbytes:
            self._check_size(receiver.nbytes)
            receiver.allocate()
            answer = _checked(self._message, from_frame(first, receiver))
            self._fill(receiver)
        if shared is not None:
            if 2 * tensor_bytes(answer) < sum(self._sizes or ()):
                answer = _copied(answer)
            shared.close()
        return answer

    def _check_size(self, nbytes: int) -> None:
        limit = self._connection.max_bytes if self._sizes is None else sum(self._sizes)
        if nbytes > limit:
            raise TooLarge(
                f"the answer of {self._connection.address} has {nbytes:,} bytes of tensors, but {limit:,} is all a "
                f"{type(self._message).__name__} of these variables can bring"
            )

    def _fill(self, receiver: StreamReceiver) -> None:
        address = self._connection.address
        while not receiver.complete:
            data = next(self._stream.answers, None)
            if data is None:
                raise Malformed(f"the answer of {address} ended before its {receiver.nbytes:,} bytes had arrived")
            receiver.feed_frame(data)


def _copied(answer: Answer) -> Answer:
    """The answer with arrays of its own.

    In an answer with few of the requested values, since the others have not changed, each value would occupy the
    segment of all until it changes again, and soon there would be none left. Encoded values are decoded into new arrays
    anyway.
    """
    if not isinstance(answer, Pulled | Pushed):
        return answer
    values = []
    for value in answer.values:
        array = value.array
        if isinstance(array, np.ndarray):
            array = array.copy()
            array.flags.writeable = False
        values.append(replace(value, array=array))
    return replace(answer, values=tuple(values))


def _checked(message: Request, answer: Request | Answer) -> Answer:
    """The answer. Raises `Malformed` if its class does not match the message."""
    if not isinstance(answer, ANSWERS[type(message)]):
        raise Malformed(f"a {type(message).__name__} was answered with a {type(answer).__name__}")
    return answer
