"""What carries a Transfer: a stream of gRPC, or a connection of the direct transport (`psserver.rpc.direct`)."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import grpc.aio

from psserver.rpc.deadline import Deadline
from pswire.errors import Malformed
from pswire.tensors.frame import SplitFrame, incoming, split
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.v1 import paramserver_pb2 as pb

#: Runs a function in a thread.
Aside = Callable[..., Awaitable[Any]]


class TransferChannel(Protocol):
    """The calls of one worker, one after the other. Cancels its task when the worker has gone."""

    def invocation_metadata(self) -> Iterable[tuple[str, Any]] | None:
        """What the worker says about itself, as in the metadata of gRPC."""

    def peer(self) -> str:
        """The worker's address, as gRPC writes it."""

    async def receive(self, hold: Callable[[int], None], release: Callable[[int], None]) -> SplitFrame | None:
        """The first frame of the next call, whose bytes are on `hold`; None at the end.

        `hold` is called as soon as they are known, and raises an error where there is no room for them. If the frame
        does not arrive they are released again.
        """

    async def fill(self, receiver: StreamReceiver, deadline: Deadline, aside: Aside | None) -> None:
        """Receive the elements that follow a frame; `aside`: many arrays, to be copied in a thread."""

    async def send(self, header: pb.Frame, sender: StreamSender, deadline: Deadline) -> None:
        """Send an answer with its elements."""


class GrpcChannel:
    """A `TransferChannel` over gRPC."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        self.invocation_metadata, self.peer = context.invocation_metadata, context.peer

    async def receive(self, hold: Callable[[int], None], release: Callable[[int], None]) -> SplitFrame | None:
        """As `TransferChannel.receive`; gRPC has held the bytes by itself."""
        data = await self._context.read()
        if data is grpc.aio.EOF:
            return None
        frame = split(data)
        hold(frame.nbytes)
        return frame

    async def fill(self, receiver: StreamReceiver, deadline: Deadline, aside: Aside | None) -> None:
        """As `TransferChannel.fill`."""
        while not receiver.complete:
            data = await deadline.wait(self._context.read())
            if data is grpc.aio.EOF:
                raise Malformed("the stream ended before the data that its header announced: not applied")
            chunk = incoming(data)
            if aside is None:
                receiver.feed(chunk)
            else:
                await aside(receiver.feed, chunk)
            deadline.passed(len(data))

    async def send(self, header: pb.Frame, sender: StreamSender, deadline: Deadline) -> None:
        """As `TransferChannel.send`."""
        for frame in sender.frames(header):
            await deadline.wait(self._context.write(frame))
            deadline.passed(len(frame))
