"""Calls of one server: unary ones, and those on streams, with the tensors of their messages and answers."""

from collections.abc import Sequence
from concurrent.futures import Future as ThreadFuture
from dataclasses import replace
from time import time_ns

import grpc
import numpy as np

from psjob.tracing.tracing import current
from pswire import messages as ms
from pswire.codec import decode, from_frame, to_frame
from pswire.errors import Malformed, TooLarge
from pswire.messages import Answer, Request
from pswire.tensors.shared_memory import Region, bytes_needed
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import MAX_INLINE_MESSAGE, InlineReceiver
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport.connection import Connection
from psworker.transport.shared_memory import AnswerReceiver, Segment, SegmentPool
from psworker.transport.streams import TransferStream

#: Bytes of the largest answer that is accepted when the size of a variable is not known.
MAX_BYTES = 16 << 30

#: Bytes of tensors from which shared memory is faster than the frame that describes them.
MIN_SHARED_BYTES = 16 << 10


class UnaryCall:
    """One call without a stream: sent when it is made, answered by `result`."""

    def __init__(self, connection: Connection, message: Request, timeout: float) -> None:
        self._connection, self._message = connection, message
        self._call = connection.unary(message)
        self._deadline = connection.deadlines.set(timeout, self._call.cancel)

    def result(self) -> Answer:
        """The answer; see `NetworkTransport.call` for its errors."""
        try:
            answer = _checked(self._message, decode(self._call.result(), InlineReceiver()))
            self._connection.note(self._message, answer)
            return answer
        except (grpc.RpcError, grpc.FutureCancelledError, ValueError) as error:
            raise self._connection.error_of(error, self._deadline) from error
        finally:
            self._connection.deadlines.drop(self._deadline)


class TransferCall:
    """One call on a stream: sent when it is made, answered by `result`.

    An answer in chunks is received in another thread, because the server would otherwise have to wait; an answer in a
    single frame or in shared memory has nothing to wait for.
    """

    def __init__(self, connection: Connection, stream: TransferStream, message: Request, timeout: float) -> None:
        self._connection, self._message, self._stream = connection, message, stream
        self._sizes = connection.answer_sizes(message)
        self._segments: list[Segment] = []
        self._streamed = 0  # bytes of the answer's values that do not come in shared memory
        self._ahead: ThreadFuture[Answer] | None = None
        self._span, self._sent = current.get(), 0
        self._deadline = connection.deadlines.set(timeout, self._stream.cancel)
        try:
            self._begin()
        except BaseException as error:
            self._failed(error)
            raise

    def _begin(self) -> None:
        """Sends the message."""
        begin = 0 if self._span is None else time_ns()
        self._stream.send(*self._frame(StreamSender()))
        if self._span is not None:
            self._sent = time_ns()
            self._span.child("send", begin, self._sent, server=self._connection.address)
        self._receive_ahead()

    def _receive_ahead(self) -> None:
        if self._streamed > MAX_INLINE_MESSAGE:
            self._ahead = self._connection.receivers.submit(self._receive)

    def result(self) -> Answer:
        """The answer; see `NetworkTransport.call` for its errors."""
        try:
            answer = self._receive() if self._ahead is None else self._ahead.result()
        except BaseException as error:
            self._failed(error)
            raise
        self._connection.deadlines.drop(self._deadline)
        self._connection.keep(self._stream)
        self._connection.note(self._message, answer)
        return answer

    def _failed(self, error: BaseException) -> None:
        """Ends the stream; raises an error of the network as one of ours."""
        stream, ahead = self._stream, self._ahead
        self._ahead = None  # it has the error, whose traceback has this call
        if ahead is None:
            stream.end()
        else:  # when its thread has left it
            stream.cancel()
            ahead.add_done_callback(lambda _: stream.end())
        self._connection.deadlines.drop(self._deadline)
        if isinstance(error, OSError):
            error.__traceback__ = None  # it has this call, whose segments would stay with the error
        if isinstance(error, grpc.RpcError | OSError):
            raise self._connection.error_of(error, self._deadline) from error

    def _frame(self, streamed: StreamSender) -> tuple[pb.Frame, StreamSender]:
        """The first frame of the request, with its tensors in shared memory if they are large enough for it."""
        pool = self._stream.pool
        segment = None if pool is None else self._segment(pool, ms.array_sizes(self._message))
        sender = streamed if segment is None else Region(segment.number, segment.memory)
        header = to_frame(self._message, sender)
        if self._span is not None:
            header.traceparent = self._span.traceparent
        answer = None if pool is None else self._segment(pool, self._sizes or ())
        if answer is None:
            self._streamed = sum(self._sizes or ())
        else:
            region = header.answer_region
            region.segment, region.offset, region.nbytes = answer.number, 0, answer.nbytes
        return header, streamed

    def _segment(self, pool: SegmentPool, sizes: Sequence[int]) -> Segment | None:
        """Shared memory for arrays of these sizes; None if they are too small or too large for it, or none is left."""
        nbytes = bytes_needed(sizes)
        segment = None if nbytes < MIN_SHARED_BYTES else pool.take(nbytes)
        if segment is not None:
            self._segments.append(segment)
        return segment

    def _receive(self) -> Answer:
        """The answer. Nothing is allocated before all that it announces has been checked."""
        address, pool = self._connection.address, self._stream.pool
        first = self._stream.receive()
        if self._span is not None:
            self._span.child("wait", self._sent, time_ns(), server=address)
        shared = None if pool is None else AnswerReceiver(self._segments, pool)
        receiver = StreamReceiver(first.data, shared, first.follows)
        answer = _checked(self._message, from_frame(first, receiver))
        if receiver.nbytes:
            limit = MAX_BYTES if self._sizes is None else sum(self._sizes)
            if receiver.nbytes > limit:
                raise TooLarge(
                    f"the answer of {address} has {receiver.nbytes:,} bytes of tensors, but {limit:,} is all a "
                    f"{type(self._message).__name__} of these variables can bring"
                )
            receiver.allocate()
            answer = _checked(self._message, from_frame(first, receiver))
            self._stream.fill(receiver)
        if shared is not None:
            if 2 * ms.tensor_bytes(answer) < sum(self._sizes or ()):
                answer = _copied(answer)
            shared.close()
        return answer


def _copied(answer: Answer) -> Answer:
    """The answer with arrays of its own.

    In an answer with few of the requested values, since the others have not changed, each value would occupy the
    segment of all until it changes again, and soon there would be none left. Encoded values are decoded into new arrays
    anyway.
    """
    if not isinstance(answer, ms.Pulled | ms.Pushed):
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
    if not isinstance(answer, ms.ANSWERS[type(message)]):
        raise Malformed(f"a {type(message).__name__} was answered with a {type(answer).__name__}")
    return answer
