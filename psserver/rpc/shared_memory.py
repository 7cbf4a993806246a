"""The shared memory of one Transfer: the segments that its worker has attached, each a descriptor of this process.

May import the lanes and the generated code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from mmap import mmap

from psserver.rpc.reused_buffers import Spent
from pswire.errors import Malformed
from pswire.messages import Request
from pswire.messages.sizes import Allocator
from pswire.tensors.segments import NotShared, open_segment
from pswire.tensors.shared_memory import SharedAllocator, SharedReceiver, place_of
from pswire.tensors.stream import StreamSender
from pswire.tensors.values import Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

#: Segments of a stream are numbered from 0, below this.
MOST = 64


class Attached:
    """Segments by their numbers.

    Args:
        allowed: whether this server shares memory at all.

    Attributes:
        memories: what is attached now.
    """

    def __init__(self, allowed: bool = True) -> None:
        self._allowed = allowed
        self.memories: dict[int, mmap] = {}

    def receiver(self) -> SharedReceiver:
        """Gives the tensors of one message that lie there."""
        return SharedReceiver(self.memories)

    def attach(self, request: pb.AttachRequest) -> pb.AttachReply:
        """Maps the segment that is offered, in place of an earlier one of its number; says why not, and raises nothing.

        When it is refused, nothing has changed. Takes 1 ms for about 10 MB; a thread would gain nothing, since Python
        stands still while it maps.
        """
        try:
            self.memories[request.segment] = self._open(request)
        except NotShared as error:
            return pb.AttachReply(reason=str(error))
        return pb.AttachReply(attached=True)

    def _open(self, request: pb.AttachRequest) -> mmap:
        if not self._allowed:
            raise NotShared("the server was started with --no-shared-memory")
        if not 0 <= request.segment < MOST:
            raise NotShared(f"segments are numbered from 0 to {MOST - 1}, not {request.segment}")
        return open_segment(request.name, request.nbytes, request.token)

    def allocator(self, header: pb.Frame, message: Request) -> Allocator:
        """Where the values of the answer may be put: in the place of arrays of the message, or where the call says.

        Raises:
            Malformed: there is no such segment, or the room is not inside of it.
        """
        spent = Spent(message)
        if not header.HasField("room"):
            return spent
        memory = self.memories.get(header.room.segment)
        if memory is None:
            raise Malformed(f"room in segment {header.room.segment}, which was not attached on this stream")
        shared = SharedAllocator(memory, header.room.offset, header.room.nbytes)
        return _Rooms((spent, shared))

    def sender(self) -> StreamSender:
        """Takes the values of an answer: those that were put into a segment stay there."""
        return _Sender(self.memories)


class _Rooms:
    """Several allocators, one after the other."""

    def __init__(self, allocators: Sequence[Allocator]) -> None:
        self._allocators = allocators

    def take(self, spec: TensorSpec) -> Array | None:
        for allocator in self._allocators:
            array = allocator.take(spec)
            if array is not None:
                return array
        return None


class _Sender(StreamSender):
    def __init__(self, memories: Mapping[int, mmap]) -> None:
        super().__init__()
        self._memories = memories

    def put(self, array: Array, tensor: pb.Tensor) -> None:
        place = place_of(array, self._memories)
        if place is None:
            super().put(array, tensor)
        else:
            tensor.shared.segment, tensor.shared.offset = place
