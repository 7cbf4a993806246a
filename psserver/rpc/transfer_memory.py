"""Memory of a Transfer: shared memory that the worker has attached, and received arrays that its answer may reuse.

May import the tensor transports and the generated code.
"""

from mmap import mmap

import numpy as np

from pswire.errors import Malformed
from pswire.messages import Push, Register, Request
from pswire.specs.encodings import ENCODINGS
from pswire.tensors.compression import Packed
from pswire.tensors.segments import NotShared, open_segment
from pswire.tensors.shared_memory import Region
from pswire.tensors.values import DTYPES, Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

#: Segments of a stream are numbered from 0, below this.
MAX_SEGMENTS = 64


class AttachedSegments:
    """The segments of one stream, mapped, by their numbers; none unless `allowed`."""

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

    def region(self, header: pb.Frame) -> Region | None:
        """The memory that a call provides for the values of its answer, or None; `Malformed` if it is not attached."""
        if not header.HasField("answer_region"):
            return None
        region = header.answer_region
        memory = self.memories.get(region.segment)
        if memory is None:
            raise Malformed(f"answer region in segment {region.segment}, which was not attached on this stream")
        return Region(region.segment, memory, region.offset, region.nbytes)


class ReusedArrays:
    """A `pswire.messages.Allocator` of the arrays of a message, each for the value of its variable.

    So a push of large gradients over gRPC and its answer take one buffer on the server instead of two. The message's
    arrays belong to the server. Those that are read before the answer is written, element by element, are reused:

    - A gradient is read by the update of its variable, also when that is the mean of several held pushes. The copy of
      the variable for an answer comes later: array tasks of one variable run in order. Tasks of other variables may run
      at the same time, so they never get this memory.
    - Tasks run in stretches. One that has read a stretch of a gradient may find the other stretches overwritten, which
      is right for whole arrays and 16-bit encodings, but not for compressions that contain indices of elements.
    - An initial value is read when its variable is made, before it is copied.
    """

    def __init__(self, message: Request) -> None:
        self._arrays: dict[str, Array] = {}
        if isinstance(message, Push):
            for gradient in message.gradients:
                array = gradient.array
                if isinstance(array, Packed) and array.form in ENCODINGS:
                    self._arrays[gradient.name] = array.parts[0]
                elif isinstance(array, np.ndarray):
                    self._arrays[gradient.name] = array
        elif isinstance(message, Register):
            self._arrays = {one.spec.name: one.value for one in message.declarations if one.value is not None}

    def take(self, spec: TensorSpec) -> Array | None:
        """The array that was received for this variable, if it has this shape and dtype and is writable."""
        array = self._arrays.get(spec.name)
        if array is None or array.shape != spec.shape or array.dtype != DTYPES[spec.dtype]:
            return None
        return self._arrays.pop(spec.name) if array.flags.writeable and array.flags.c_contiguous else None
