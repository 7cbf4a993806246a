"""The segments that a worker has attached to one Transfer: its tensors are read there, and values written there.

May import the tensor transports and the generated code.
"""

from __future__ import annotations

from mmap import mmap

from pswire.errors import Malformed
from pswire.tensors.segments import NotShared, open_segment
from pswire.tensors.shared_memory import Region, SharedReceiver
from pswire.v1 import paramserver_pb2 as pb

#: Segments of a stream are numbered from 0, below this.
MAX_SEGMENTS = 64


class AttachedSegments:
    """Segments of one stream by their numbers.

    Args:
        allowed: whether this server may share memory.

    Attributes:
        memories: the mapped segments.
    """

    def __init__(self, allowed: bool = True) -> None:
        self._allowed = allowed
        self.memories: dict[int, mmap] = {}

    def attach(self, request: pb.AttachRequest) -> pb.AttachReply:
        """Maps a segment in place of an earlier one of its number; the reply has the reason if it is refused.

        Takes 1 ms for about 10 MB; a thread would gain nothing, since mmap holds the GIL.
        """
        try:
            if not self._allowed:
                raise NotShared("the server was started with --no-shared-memory")
            if not 0 <= request.segment < MAX_SEGMENTS:
                raise NotShared(f"segments are numbered from 0 to {MAX_SEGMENTS - 1}, not {request.segment}")
            self.memories[request.segment] = open_segment(request.name, request.nbytes, request.token)
        except NotShared as error:
            return pb.AttachReply(reason=str(error))
        return pb.AttachReply(attached=True)

    def receiver(self) -> SharedReceiver:
        """A receiver for the tensors of one message."""
        return SharedReceiver(self.memories)

    def region(self, header: pb.Frame) -> Region | None:
        """The memory that a call provides for the values of its answer, or None; `Malformed` if it is not attached."""
        if not header.HasField("answer_region"):
            return None
        region = header.answer_region
        memory = self.memories.get(region.segment)
        if memory is None:
            raise Malformed(f"answer region in segment {region.segment}, which was not attached on this stream")
        return Region(region.segment, memory, region.offset, region.nbytes)
