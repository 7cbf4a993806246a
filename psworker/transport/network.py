"""The shards behind gRPC: one channel for each, unary calls for what is small and Transfer for what is not.

Delivers a message once and says what went wrong; trying again is the client's. May import pswire and grpc, and is
imported only by who needs a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message as Proto

from pswire.channel import check_address, error_from, open_channel
from pswire.codec import decode, encode, from_frame, to_frame
from pswire.errors import ConfigurationError, InternalError, Malformed, TooLarge
from pswire.lanes import CHUNK, Receiver
from pswire.lanes.inline import InlineReceiver, InlineSender
from pswire.lanes.stream import StreamReceiver, StreamSender
from pswire.messages import ANSWERS, Answer, Assign, Pull, Pulled, Push, Pushed, Register, Registered, Request
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub

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
        self._links = [_Link(address, max_bytes) for address in checked]

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


class _Link:
    """The connection to one server, and what is known of the sizes of its variables."""

    def __init__(self, address: str, max_bytes: int) -> None:
        self._address = address
        self._max_bytes = max_bytes
        self._channel = open_channel(address)
        self._stub = ParameterServerStub(self._channel)  # type: ignore[no-untyped-call]
        self._unary: dict[type[Request], Any] = {kind: getattr(self._stub, kind.__name__) for kind in ANSWERS}
        self._sizes: dict[str, int] = {}  # bytes, of each variable that an answer has brought

    def call(self, message: Request, timeout: float) -> Answer:
        expected = self._expected(message)
        try:
            if expected is not None and max(expected, _outgoing(message)) <= CHUNK:
                answer = self._call_unary(message, timeout)
            else:
                answer = self._transfer(message, self._max_bytes if expected is None else expected, timeout)
        except grpc.RpcError as error:
            raise error_from(error, self._address) from error
        except ValueError as error:  # gRPC's answer to a call on a closed channel
            raise InternalError(f"no call to {self._address} is possible after close(): {error}") from error
        if isinstance(answer, Registered) or (expected is None and isinstance(answer, Pulled | Pushed)):
            self._sizes.update({value.name: value.array.nbytes for value in answer.values})
        return answer

    def close(self) -> None:
        self._channel.close()

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

    def _call_unary(self, message: Request, timeout: float) -> Answer:
        proto = self._unary[type(message)](encode(message, InlineSender()), timeout=timeout)
        return _answer(message, proto, InlineReceiver())

    def _transfer(self, message: Request, limit: int, timeout: float) -> Answer:
        lane = StreamSender()
        header = to_frame(encode(message, lane))
        frames = self._stub.Transfer(_frames(header, lane), timeout=timeout)
        try:
            return self._receive(message, frames, limit)
        finally:
            frames.cancel()  # if it has ended by itself, this does nothing

    def _receive(self, message: Request, frames: Iterator[pb.Frame], limit: int) -> Answer:
        """The answer, of which nothing is allocated before all of what it announces is found to be acceptable."""
        header = next(frames, None)
        if header is None:
            raise Malformed(f"the server at {self._address} ended the transfer without an answer")
        proto, receiver = from_frame(header), StreamReceiver()
        _answer(message, proto, receiver)
        if receiver.nbytes > limit:
            raise TooLarge(
                f"the answer of {self._address} has {receiver.nbytes:,} bytes of tensors, but {limit:,} is what a "
                f"{type(message).__name__} of these variables can bring"
            )
        receiver.allocate()
        answer = _answer(message, proto, receiver)
        for frame in frames:
            if not frame.chunk:
                raise Malformed(
                    f"chunks of data must follow in the answer of {self._address}, and there is another frame"
                )
            receiver.feed(frame.chunk)
        if not receiver.complete:
            raise Malformed(f"the answer of {self._address} ended before its {receiver.nbytes:,} bytes had come")
        return answer


def _outgoing(message: Request) -> int:
    """Bytes of the arrays in the message."""
    match message:
        case Register():
            return sum(one.value.nbytes for one in message.declarations if one.value is not None)
        case Push():
            return sum(gradient.array.nbytes for gradient in message.gradients)
        case Assign():
            return sum(assignment.array.nbytes for assignment in message.assignments)
        case _:
            return 0


def _frames(header: pb.Frame, lane: StreamSender) -> Iterator[pb.Frame]:
    yield header
    for chunk in lane.chunks():
        yield pb.Frame(chunk=chunk)


def _answer(message: Request, proto: Proto, lane: Receiver) -> Answer:
    answer = decode(proto, lane)
    if not isinstance(answer, ANSWERS[type(message)]):
        raise Malformed(f"a {type(message).__name__} was answered with a {type(answer).__name__}")
    return answer
