"""The shards behind gRPC: one channel for each, unary calls, and open streams for the messages with tensors.

Delivers a message once and says what went wrong; trying again is the client's. May import pswire, deadlines and grpc,
and is imported only by who needs a network.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import grpc

from pswire.channel import check_address, error_from, open_channel
from pswire.codec import decode, encode, from_frame, to_frames
from pswire.errors import ConfigurationError, InternalError, Malformed, TimedOut, TooLarge
from pswire.lanes.inline import InlineReceiver, InlineSender
from pswire.lanes.stream import StreamReceiver
from pswire.messages import (
    ANSWERS,
    Answer,
    Assign,
    Pull,
    Pulled,
    Push,
    Pushed,
    Register,
    Registered,
    Request,
)
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub
from psworker.transport.deadlines import Deadlines

#: Bytes that an answer may have when it is not known how large the variables are that were asked for.
MAX_BYTES = 16 << 30


class NetworkTransport:
    """Calls to shards at addresses, in the order of their numbers.

        with closing(NetworkTransport(["127.0.0.1:5000"])) as transport:
            joined = transport.call(0, Join("worker-0"), timeout=10.0)

    Connects with the first call. Any thread may call.

    Args:
        addresses: as `pswire.channel.check_address` takes them.
        max_bytes: the most that is accepted as an answer whose size is not known beforehand.

    Raises:
        ConfigurationError: there is no address, one that is none, or one twice.
    """

    def __init__(self, addresses: Sequence[str], max_bytes: int = MAX_BYTES) -> None:
        checked = [check_address(address) for address in addresses]
        if not checked or len(set(checked)) < len(checked):
            raise ConfigurationError(
                f"a worker needs the address of each shard once, got {', '.join(checked) or 'none'}"
            )
        self._deadlines = Deadlines()
        self._links = [_Link(address, max_bytes, self._deadlines) for address in checked]

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self._links)

    def call(self, shard: int, message: Request, timeout: float) -> Answer:
        """Sends `message` to a shard and waits for its answer, `timeout` seconds at most.

        Raises:
            Unavailable, TimedOut: no server there, or no answer in time; it may have taken the message or not.
            Malformed, TooLarge: the answer is not what was asked for.
            ParamServerError: what else the shard says.
        """
        return self._links[shard].call(message, timeout)

    def close(self) -> None:
        """Ends the connections; calls under way fail with `Unavailable`."""
        for link in self._links:
            link.close()
        self._deadlines.close()


class _Link:
    """The connection to one server, and what is known of the sizes of its variables.

    `_lock` guards the streams: those that are idle serve the next calls, so there are as many as calls at a time.
    """

    def __init__(self, address: str, max_bytes: int, deadlines: Deadlines) -> None:
        self._address = address
        self._max_bytes = max_bytes
        self._deadlines = deadlines
        self._channel = open_channel(address)
        self._stub = ParameterServerStub(self._channel)  # type: ignore[no-untyped-call]
        self._unary: dict[type[Request], Any] = {kind: getattr(self._stub, kind.__name__) for kind in ANSWERS}
        self._sizes: dict[str, int] = {}  # bytes, of each variable that an answer has brought
        self._lock = threading.Lock()
        self._idle: list[_Stream] = []
        self._closed = False

    def call(self, message: Request, timeout: float) -> Answer:
        try:
            if isinstance(message, Register | Pull | Push | Assign):
                return self._call_stream(message, timeout)
            proto = self._unary[type(message)](encode(message, InlineSender()), timeout=timeout)
            return _checked(message, decode(proto, InlineReceiver()))
        except grpc.RpcError as error:
            raise error_from(error, self._address) from error
        except ValueError as error:  # gRPC's answer to a call on a closed channel
            raise InternalError(f"no call to {self._address} is possible after close(): {error}") from error

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.end()
        self._channel.close()

    def _call_stream(self, message: Request, timeout: float) -> Answer:
        expected = self._expected(message)
        frames = to_frames(message)
        header = next(frames)  # here and not in gRPC's thread, so that what cannot be sent is told
        stream = self._stream()
        try:
            with self._deadlines.of(timeout, stream.cancel) as deadline:
                answers = stream.send(itertools.chain((header,), frames))
                answer = self._receive(message, answers, self._max_bytes if expected is None else expected)
        except BaseException as error:
            stream.end()
            if isinstance(error, grpc.RpcError) and deadline.passed:
                raise TimedOut(
                    f"the server at {self._address} did not answer in time; is it overloaded, or the timeout too short?"
                ) from error
            raise
        self._keep(stream)
        if isinstance(answer, Registered) or (expected is None and isinstance(answer, Pulled | Pushed)):
            self._sizes.update({value.name: value.array.nbytes for value in answer.values})
        return answer

    def _stream(self) -> _Stream:
        with self._lock:
            return self._idle.pop() if self._idle else _Stream(self._stub)

    def _keep(self, stream: _Stream) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(stream)
                return
        stream.end()

    def _expected(self, message: Request) -> int | None:
        """Bytes of the values that the answer brings at most; None if the size of a variable is not known yet."""
        match message:
            case Register():
                return sum(one.spec.nbytes for one in message.declarations)
            case Pull():
                names = message.names
            case Push():
                names = message.pull
            case _:
                return 0
        try:
            return sum([self._sizes[name] for name in names])
        except KeyError:
            return None

    def _receive(self, message: Request, frames: Iterator[pb.Frame], limit: int) -> Answer:
        """The answer, of which nothing is allocated before all of what it announces is found to be acceptable."""
        header = next(frames, None)
        if header is None:
            raise Malformed(f"the server at {self._address} ended the stream without an answer")
        proto, receiver = from_frame(header), StreamReceiver()
        answer = _checked(message, decode(proto, receiver))
        nbytes = receiver.nbytes
        if not nbytes:
            return answer
        if nbytes > limit:
            raise TooLarge(
                f"the answer of {self._address} has {nbytes:,} bytes of tensors, but {limit:,} is what a "
                f"{type(message).__name__} of these variables can bring"
            )
        receiver.allocate()
        answer = _checked(message, decode(proto, receiver))
        while not receiver.complete:
            frame = next(frames, None)
            if frame is None:
                raise Malformed(f"the answer of {self._address} ended before its {nbytes:,} bytes had come")
            if not frame.chunk:
                raise Malformed(
                    f"chunks of data must follow in the answer of {self._address}, and there is another frame"
                )
            receiver.feed(frame.chunk)
        return answer


class _Stream:
    """A Transfer that stays open for one call after another: a new stream costs four times as much as a call on it."""

    def __init__(self, stub: ParameterServerStub) -> None:
        self._requests: queue.SimpleQueue[Iterator[pb.Frame] | None] = queue.SimpleQueue()
        self._answers = stub.Transfer(itertools.chain.from_iterable(iter(self._requests.get, None)))

    def send(self, frames: Iterator[pb.Frame]) -> Iterator[pb.Frame]:
        """Has gRPC's thread send a request; what comes back are the frames of all answers, this one's next."""
        self._requests.put(frames)
        answers: Iterator[pb.Frame] = self._answers
        return answers

    def cancel(self) -> None:
        """Has whoever waits for an answer get an error."""
        self._answers.cancel()

    def end(self) -> None:
        """Frees gRPC's thread, and the server."""
        self._requests.put(None)
        self._answers.cancel()


def _checked(message: Request, answer: Request | Answer) -> Answer:
    if not isinstance(answer, ANSWERS[type(message)]):
        raise Malformed(f"a {type(message).__name__} was answered with a {type(answer).__name__}")
    return answer
