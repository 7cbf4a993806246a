"""A Transfer over gRPC. May import pswire and grpc."""

import itertools
import queue
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pswire.errors import Malformed
from pswire.network.channel import member_metadata
from pswire.tensors.frame import Incoming, incoming
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport import GRPC
from psworker.transport.shared_memory import SegmentPool
from psworker.transport.streams import attached_segment

_ENDED = "the server ended the stream before all of an answer had arrived"


class GrpcStream:
    """A `TransferStream` over gRPC: halves the cost of a call.

    `open_stream` opens it for an iterator of request frames, with the `token` of the worker whose calls it carries to a
    shard. gRPC's thread takes the frames of requests.
    """

    name = GRPC

    def __init__(self, open_stream: Callable[..., Any], token: bytes, shard: int, *, share: bool) -> None:
        self.token = token
        self._queued: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        requests = itertools.chain.from_iterable(iter(self._queued.get, None))
        self._answers = open_stream(requests, metadata=member_metadata(token, shard))
        self.pool = SegmentPool(partial(attached_segment, self)) if share else None

    def send(self, header: pb.Frame, sender: StreamSender) -> None:
        """As `TransferStream.send`; returns at once."""
        self._queued.put(sender.frames(header))

    def receive(self) -> Incoming:
        """As `TransferStream.receive`."""
        frame = next(self._answers, None)
        if frame is None:
            raise Malformed(_ENDED)
        return incoming(frame)

    def fill(self, receiver: StreamReceiver) -> None:
        """As `TransferStream.fill`."""
        while not receiver.complete:
            receiver.feed(self.receive())

    def is_active(self) -> bool:
        """As `TransferStream.is_active`."""
        return bool(self._answers.is_active())

    def cancel(self) -> None:
        """As `TransferStream.cancel`; frees gRPC's thread too."""
        self._queued.put(None)
        self._answers.cancel()

    def end(self) -> None:
        """As `TransferStream.end`."""
        self.cancel()
        # Breaks reference cycles: the pool knows this stream, and gRPC's error is the answers themselves, whose
        # traceback has this stream and the call.
        self.pool = self._answers.__traceback__ = None
