"""One call after another on an open stream to one server, with tensors of any size.

Knows frames and shared memory, and that what arrives is checked before memory is allocated for it; no retries. May
import pswire, deadlines and shared.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import grpc
import numpy as np

from pswire.channel import error_from, late
from pswire.codec import from_frame, to_frame
from pswire.errors import Malformed, TimedOut, TooLarge
from pswire.messages import ANSWERS, Answer, Pulled, Push, Pushed, Register, Request
from pswire.messages.sizes import arrays, tensor_bytes
from pswire.tensors.compression import Packed
from pswire.tensors.frames import Incoming, incoming
from pswire.tensors.segments import BEGIN
from pswire.tensors.shared_memory import HALVED, SharedSender, needed
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import INLINE
from pswire.tensors.values import Array, IndexedSlices
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport import shared_memory
from psworker.transport.deadlines import Deadlines

#: Bytes of tensors from which shared memory is faster than the frame that describes them.
SHARED_FROM = 16 << 10


class Transfer:
    """A Transfer that stays open for one call after another: a call on it costs half of one by itself.

    Args:
        open_stream: opens it, for these frames; gives the frames of all answers.
        share: whether to try shared memory.

    Attributes:
        answers: the frames of all answers.
        segments: its shared memory; None if it was not to be tried.
    """

    def __init__(self, open_stream: Callable[[Iterator[bytes]], Any], *, share: bool) -> None:
        self._requests: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        self._helper: ThreadPoolExecutor | None = None
        self.answers = open_stream(itertools.chain.from_iterable(iter(self._requests.get, None)))
        self.segments = shared_memory.Segments(self._attach) if share else None

    def probe(self) -> None:
        """Finds out whether there is shared memory with the server."""
        block = None if self.segments is None else self.segments.take(1)
        if self.segments is not None and block is not None:
            self.segments.give_back(block)

    def send(self, frames: Iterator[bytes]) -> None:
        """Has gRPC's thread send a request."""
        self._requests.put(frames)

    @property
    def helper(self) -> ThreadPoolExecutor:
        """A thread of this stream's own, for what is to be done while the caller goes on; it ends with the stream."""
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, thread_name_prefix="psworker-stream")
        return self._helper

    @property
    def alive(self) -> bool:
        """Whether the next call may go over it, as far as is known: its server may have gone since the last one."""
        return bool(self.answers.is_active())

    def cancel(self) -> None:
        """Has whoever waits for an answer get an error; frees the server, and gRPC's thread."""
        self._requests.put(None)
        self.answers.cancel()

    def end(self) -> None:
        """Frees the threads, the server, and the memory as far as nobody has a value in it."""
        self.cancel()
        # Circles go when Python happens to look for them: segments know this stream, and the error that gRPC raises is
        # `answers` itself, whose traceback has this stream and the call.
        self.segments = self.answers.__traceback__ = None
        if self._helper is not None:
            self._helper.shutdown(wait=False)

    def _attach(self, request: pb.AttachRequest) -> pb.AttachReply:
        self.send(iter((pb.Frame(attach=request).SerializeToString(),)))
        frame = next(self.answers, None)
        header = None if frame is None else incoming(frame).header
        if header is None or header.WhichOneof("piece") != "attached":
            raise Malformed("shared memory was offered to the server, and it did not answer that")
        return header.attached


class Link(Protocol):
    """What a call needs to know of its server."""

    address: str
    max_bytes: int
    deadlines: Deadlines

    def stream(self) -> Transfer:
        """One that is idle, or a new one."""

    def keep(self, stream: Transfer) -> None:
        """Takes back a stream whose call has ended well."""

    def answer_sizes(self, message: Request, without: Collection[str] = ()) -> list[int] | None:
        """Bytes of each of the values that the answer brings at most, `without` some; None if that is not known."""


class TransferCall:
    """One call on a stream: sent when it is made, answered by `result`.

    An answer in chunks is taken as it comes, in another thread, or else the server would have to wait with it; one that
    is in a single frame or in shared memory is as good as here when it has come.
    """

    def __init__(self, link: Link, message: Request, timeout: float) -> None:
        self._link, self._message = link, message
        self._sizes = link.answer_sizes(message)
        self._expected = None if self._sizes is None else sum(self._sizes)
        self._blocks: list[shared_memory.Block] = []
        self._in_frames = 0  # bytes of the answer's values for which there is no room in shared memory
        self._ahead: Future[Answer] | None = None
        self._stream = link.stream()
        self._deadline = link.deadlines.set(timeout, self._stream.cancel)
        try:
            self._stream.send(self._frames())
            if self._in_frames > INLINE:
                self._ahead = self._stream.helper.submit(self._receive)
        except BaseException as error:
            self._failed(error)
            raise

    def result(self) -> Answer:
        """The answer; see `GrpcTransport.call` for what it raises."""
        try:
            answer = self._receive() if self._ahead is None else self._ahead.result()
        except BaseException as error:
            self._failed(error)
            raise
        self._link.deadlines.drop(self._deadline)
        self._link.keep(self._stream)
        return answer

    def _failed(self, error: BaseException) -> None:
        """Gives up the stream; raises what an error of gRPC means."""
        self._stream.end()
        self._ahead = None  # it has the error, whose traceback has this call
        self._link.deadlines.drop(self._deadline)
        if isinstance(error, grpc.RpcError):
            if self._deadline.passed:
                raise TimedOut(late(self._link.address)) from error
            raise error_from(error, self._link.address) from error

    # --- what is sent ---------------------------------------------------------------------------------------------

    def _frames(self) -> Iterator[bytes]:
        segments = self._stream.segments
        if segments is not None:
            header = self._in_shared_memory(segments)
            if header is not None:
                return iter((header.SerializeToString(),))
        sender = StreamSender()
        header = to_frame(self._message, sender)
        self._give_room(header)
        return sender.frames(header)

    def _in_shared_memory(self, segments: shared_memory.Segments) -> pb.Frame | None:
        """The frame of a message whose tensors are there; None if they are too few or too many for it."""
        sizes = [array.nbytes for array in arrays(self._message)]
        if sum(sizes) < SHARED_FROM:
            return None
        block = segments.take(needed(sizes))
        if block is None:
            return None
        self._blocks.append(block)
        helper = self._stream.helper if max(sizes) >= HALVED else None
        header = to_frame(self._message, SharedSender(block.segment.memory, block.number, helper))
        self._give_room(header)
        return header

    def _give_room(self, header: pb.Frame) -> None:
        """Lends the server a block for the values of the answer, as far as there is need and use for one."""
        segments, nbytes = self._stream.segments, self._room_needed()
        block = None if segments is None or nbytes < SHARED_FROM else segments.take(nbytes)
        if block is None:
            self._in_frames = nbytes
        else:
            self._blocks.append(block)
            room = header.room
            room.segment, room.offset, room.nbytes = block.number, BEGIN, block.segment.nbytes - BEGIN

    def _room_needed(self) -> int:
        """Bytes for the values of the answer that the server cannot put in the place of gradients it has used."""
        spent = _spent(self._message) if self._blocks else ()
        return needed((self._link.answer_sizes(self._message, spent) if spent else self._sizes) or ())

    # --- what comes -----------------------------------------------------------------------------------------------

    def _receive(self) -> Answer:
        """The answer, of which nothing is allocated before all of what it announces is found to be acceptable."""
        address, segments = self._link.address, self._stream.segments
        frame = next(self._stream.answers, None)
        if frame is None:
            raise Malformed(f"the server at {address} ended the stream without an answer")
        lent = None if segments is None else shared_memory.Lent(self._blocks, segments.give_back)
        first = incoming(frame)
        receiver = StreamReceiver(first.data, lent)
        answer = self._decoded(first, receiver)
        if receiver.nbytes:
            self._check_size(receiver.nbytes)
            receiver.allocate()
            answer = self._decoded(first, receiver)
            self._fill(receiver)
        if lent is not None:
            if 2 * tensor_bytes(answer) < (self._expected or 0):
                answer = _copied(answer)
            lent.close()
        return answer

    def _decoded(self, frame: Incoming, receiver: StreamReceiver) -> Answer:
        return checked(self._message, from_frame(frame, receiver))

    def _check_size(self, nbytes: int) -> None:
        limit = self._link.max_bytes if self._expected is None else self._expected
        if nbytes > limit:
            raise TooLarge(
                f"the answer of {self._link.address} has {nbytes:,} bytes of tensors, but {limit:,} is what a "
                f"{type(self._message).__name__} of these variables can bring"
            )

    def _fill(self, receiver: StreamReceiver) -> None:
        address = self._link.address
        while not receiver.complete:
            data = next(self._stream.answers, None)
            if data is None:
                raise Malformed(f"the answer of {address} ended before its {receiver.nbytes:,} bytes had come")
            frame = incoming(data)
            if not frame.chunk:
                raise Malformed(f"chunks of data must follow in the answer of {address}, and there is another frame")
            receiver.feed(frame.chunk)


def _spent(message: Request) -> list[str]:
    """The variables of which a message in shared memory has an array that their values can be put in."""
    match message:
        case Push(encoding=encoding):
            return [one.name for one in message.gradients if _form(one.array) == encoding]
        case Register():
            return [one.spec.name for one in message.declarations if one.value is not None]
        case _:
            return []


def _copied(answer: Answer) -> Answer:
    """The answer with arrays of its own.

    Of one that brings few of the values that were asked for, since the others have not changed, each would keep the
    memory of all until it changes again: soon there would be no segment left. What is packed nobody keeps.
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


def _form(array: Array | IndexedSlices | Packed) -> str | None:
    """That of a whole array, "" for one that is as it is; None for rows."""
    return array.form if isinstance(array, Packed) else "" if isinstance(array, np.ndarray) else None


def checked(message: Request, answer: Request | Answer) -> Answer:
    """The answer. Raises `Malformed` if it is not of the kind that the message gets."""
    if not isinstance(answer, ANSWERS[type(message)]):
        raise Malformed(f"a {type(message).__name__} was answered with a {type(answer).__name__}")
    return answer
