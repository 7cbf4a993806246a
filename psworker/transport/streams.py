"""What carries the calls of a Transfer: a stream of gRPC or a direct connection. May import pswire and grpc."""

from typing import Protocol

from pswire.errors import Malformed
from pswire.tensors.frame import Incoming
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport.shared_memory import Segment, SegmentPool, fetch_segment


class TransferStream(Protocol):
    """A Transfer that stays open for consecutive calls, one at a time.

    Errors of the network are `OSError` or `grpc.RpcError`; what a server refuses over a direct connection is an error
    of ours.

    Attributes:
        name: of what carries it, as `Transport.tensor_transport` names it.
        token: of the worker whose calls it carries.
        pool: its segments of shared memory; None without.
    """

    name: str
    token: bytes
    pool: SegmentPool | None

    def send(self, header: pb.Frame, sender: StreamSender) -> None:
        """Send a frame and the elements behind it, which are borrowed until the answer is there."""

    def receive(self) -> Incoming:
        """The first frame of the next answer. Raises `Malformed` if the server has ended the stream in order."""

    def fill(self, receiver: StreamReceiver) -> None:
        """Receive the elements that follow a frame."""

    def is_active(self) -> bool:
        """Whether the server has not ended it, as far as is known."""

    def cancel(self) -> None:
        """End waits for an answer with an error, and free the server. Thread-safe."""

    def end(self) -> None:
        """Cancel it, and free what belongs to it. Segments with values stay as long as these."""


def attached_segment(stream: TransferStream, number: int, nbytes: int) -> Segment:
    """A new segment of a stream."""
    stream.send(pb.Frame(attach=pb.AttachRequest(segment=number, nbytes=nbytes)), StreamSender())
    header = stream.receive().header
    if header.WhichOneof("piece") != "attached":
        raise Malformed("the server did not answer the request for shared memory")
    return fetch_segment(header.attached, number, nbytes)
