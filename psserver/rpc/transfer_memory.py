"""Memory of a Transfer: shared memory that the worker has attached, and received arrays that its answer may reuse.

May import the tensor transports and the generated code.
"""

import asyncio
from collections import Counter
from collections.abc import Collection

import numpy as np

from psserver.rpc.shared_segment_socket import SegmentSocket
from pswire.errors import Malformed
from pswire.messages import Push, Register, Request
from pswire.specs.encodings import ENCODINGS
from pswire.tensors.compression import Packed
from pswire.tensors.shared_memory import Region
from pswire.tensors.shared_segments import MAX_SEGMENTS, NotShared
from pswire.tensors.values import DTYPES, Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

#: Segments of all workers: a mapping each, of which Linux allows a process 65,530. A worker has few streams.
MAX_SEGMENTS_IN_ALL = 16_384


class SharedMemory:
    """The segments of all streams of a server: their number, their bytes, and the socket of which workers get them.

    `limit` bytes in all, half of it for one worker; none at all if it is None. Called in the event loop.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit or 0
        self._bytes: Counter[str] = Counter()
        self._count = 0
        self._socket: SegmentSocket | None = None
        self.refused = ""  # the reason why there is none
        try:
            if limit is None:
                raise NotShared("the server was started with --no-shared-memory")
            self._socket = SegmentSocket()
        except NotShared as error:
            self.refused = str(error)

    def close(self) -> None:
        """Stop offering segments."""
        if self._socket is not None:
            self._socket.close()

    @property
    def socket(self) -> SegmentSocket:
        """The socket from which workers get segments; `NotShared` without one."""
        if self._socket is None:
            raise NotShared(self.refused)
        return self._socket

    def reserve(self, worker: str, nbytes: int, replaced: Collection[int] = ()) -> None:
        """Count a segment of `nbytes` instead of the `replaced` ones; `NotShared` if that is too much."""
        freed = sum(replaced)
        of_worker, in_all = self._bytes[worker] - freed + nbytes, self._bytes.total() - freed + nbytes
        if of_worker > self._limit // 2 or in_all > self._limit:
            raise NotShared(
                f"a segment of {nbytes:,} bytes, but {worker!r} has {self._bytes[worker]:,} and all workers "
                f"{self._bytes.total():,}; a worker may have {self._limit // 2:,} and all {self._limit:,}: raise "
                "--shared-memory-limit"
            )
        if self._count - len(replaced) >= MAX_SEGMENTS_IN_ALL:
            raise NotShared(f"all workers have {MAX_SEGMENTS_IN_ALL:,} segments, which is the most for a server")
        self.release(worker, replaced)
        self._bytes[worker] += nbytes
        self._count += 1

    def release(self, worker: str, sizes: Collection[int]) -> None:
        """Stop counting segments of these sizes."""
        self._count -= len(sizes)
        self._bytes[worker] -= sum(sizes)
        if not self._bytes[worker]:
            del self._bytes[worker]


class AttachedSegments:
    """The segments of one stream of a worker, mapped, by their numbers.

    Each step of the stream begins with `settle`, if one is `offered`.

    Attributes:
        memories: by number; written by a thread of the socket while an offer is open, and otherwise by the event loop.
        offered: the number and token of a segment that the worker was offered in the last step.
    """

    def __init__(self, shared: SharedMemory, worker: str) -> None:
        self.memories: dict[int, Array] = {}
        self._shared, self._worker = shared, worker
        self._sizes: dict[int, int] = {}  # also of the one that is offered
        self.offered: tuple[int, bytes] | None = None

    def attach(self, request: pb.AttachRequest) -> pb.AttachReply:
        """Offers the worker a segment, instead of an earlier one with its number; or replies with a reason."""
        number, nbytes = request.segment, request.nbytes
        try:
            socket = self._shared.socket
            if not 0 <= number < MAX_SEGMENTS:
                raise NotShared(f"segments are numbered from 0 to {MAX_SEGMENTS - 1}, not {number}")
            if nbytes < 1:
                raise NotShared(f"a segment of {nbytes:,} bytes")
            self._shared.reserve(self._worker, nbytes, [self._sizes[number]] if number in self._sizes else ())
        except NotShared as error:
            return pb.AttachReply(reason=str(error))
        self._sizes[number] = nbytes
        if number in self.memories:
            _unmap([self.memories.pop(number)])
        token = socket.offer(nbytes, number, self.memories)
        self.offered = number, token
        return pb.AttachReply(socket=socket.name, token=token)

    def settle(self) -> None:
        """Ends the offer of a segment that the worker did not take: it continues without."""
        if self.offered is None:
            return
        (number, token), self.offered = self.offered, None
        if self._shared.socket.withdraw(token):
            self._shared.release(self._worker, [self._sizes.pop(number)])

    def close(self) -> None:
        """Gives all memory back. Array tasks that still read it or write there keep it until they end."""
        self.settle()
        self._shared.release(self._worker, self._sizes.values())
        self._sizes.clear()
        memories = [*self.memories.values()]
        self.memories.clear()
        if memories:
            _unmap(memories)

    def region(self, region: pb.Region) -> Region:
        """The memory that a call provides for the values of its answer; `Malformed` if it is not attached."""
        memory = self.memories.get(region.segment)
        if memory is None:
            raise Malformed(f"answer region in segment {region.segment}, which was not attached on this stream")
        return Region(region.segment, memory, region.offset, region.nbytes)


def _unmap(memories: list[Array]) -> None:
    """Drop these references, the last ones, in a thread: that takes 0.4 s for a GB when the worker has gone."""
    asyncio.get_running_loop().run_in_executor(None, memories.clear)


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
