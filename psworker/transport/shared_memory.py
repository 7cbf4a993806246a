"""A worker's shared memory: a pool of segments for each stream, and arrays in them.

A segment belongs to one call at a time: the worker writes gradients into one, and the server writes values into
another. Values are used in place; a segment returns to the pool once no array refers to it, so memory in use
is never overwritten. A call that fails ends its stream together with the pool, because the server may still write into
the segments. May import pswire and numpy.
"""

import os
import socket
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pswire.errors import Malformed
from pswire.tensors.shared_memory import aligned, array_at
from pswire.tensors.shared_segments import (
    DONE,
    HANDOVER_TIMEOUT,
    MAX_SEGMENTS,
    NotShared,
    allocate_and_map,
    check_supported,
    socket_path,
)
from pswire.tensors.values import Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

#: Bytes of the smallest segment.
MIN_SEGMENT_BYTES = 64 << 10

#: Smaller values are copied, because an array that the program keeps occupies a whole segment.
MIN_BORROWED_BYTES = 64 << 10

#: The most bytes of a server's reason for not sending a segment.
_MAX_REASON = 1000


@dataclass(slots=True, eq=False, weakref_slot=True)
class Segment:
    """Memory that a server has mapped too, as segment `number` of a stream: uint8, zero at the beginning."""

    number: int
    memory: Array

    @property
    def nbytes(self) -> int:
        """The size of the memory."""
        return len(self.memory)


def fetch_segment(reply: pb.AttachReply, number: int, nbytes: int) -> Segment:
    """The segment that a server has offered, mapped by both. Takes 1 ms for about 2 MB: the kernel clears memory.

    Raises `NotShared` if the server refuses, or cannot be reached over its socket.
    """
    if not reply.socket:
        raise NotShared(reply.reason or "the server gives no reason")
    check_supported()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(HANDOVER_TIMEOUT)
        try:
            connection.connect(socket_path(reply.socket))
            connection.sendall(reply.token)
            memory = _received(connection, nbytes)
            connection.sendall(DONE)
            _check(connection.recv(_MAX_REASON))
        except FileNotFoundError:
            raise NotShared(
                "this process cannot see the server's socket: it is on another host or in another container"
            ) from None
        except PermissionError:
            raise NotShared("the server belongs to another user") from None
        except OSError as error:
            raise NotShared(f"the server's socket for memory: {error.strerror or error}") from error
    return Segment(number, memory)


def _received(connection: socket.socket, nbytes: int) -> Array:
    """The memory of the descriptor that the server sends."""
    data, descriptors, _, _ = socket.recv_fds(connection, _MAX_REASON, 1, socket.MSG_CMSG_CLOEXEC)
    try:
        if not descriptors:
            _check(b"" if data == DONE else data)
        return allocate_and_map(descriptors[0], nbytes)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _check(data: bytes) -> None:
    """Raise `NotShared`, with the server's reason, unless it has sent `DONE`."""
    if data != DONE:
        reason = data.decode(errors="replace")
        raise NotShared(reason if reason and reason.isprintable() else "the server has closed its socket")


class SegmentPool:
    """The segments of one stream, `count` in all. For one thread at a time, except `give_back`.

    `attach` makes a segment of a number and a size; `refused` is the reason why no further one can be made, or "".
    """

    def __init__(self, attach: Callable[[int, int], Segment]) -> None:
        self._attach = attach
        self._free: list[Segment] = []  # other threads append to it, also during `take`
        self.count = 0
        self.refused = ""

    def take(self, nbytes: int) -> Segment | None:
        """A segment of at least `nbytes` for one call; None if none is left."""
        size = _rounded(nbytes)
        for segment in list(self._free):
            if size <= segment.nbytes <= 4 * size:
                self._free.remove(segment)
                return segment
        if self.refused:
            return None
        if self.count < MAX_SEGMENTS:
            return self._new(self.count, size)
        return self._new(self._free.pop(0).number, size) if self._free else None  # replaces one of another size

    def give_back(self, segment: Segment) -> None:
        """Makes a segment available to other calls. Thread-safe."""
        self._free.append(segment)

    def _new(self, number: int, nbytes: int) -> Segment | None:
        try:
            segment = self._attach(number, nbytes)
        except NotShared as error:
            self.refused = str(error)
            return None
        self.count = max(self.count, number + 1)
        return segment


def _rounded(nbytes: int) -> int:
    """Rounded up by at most an eighth or 16 MB, so that calls of similar size can use the same segments."""
    nbytes = max(MIN_SEGMENT_BYTES, aligned(nbytes))
    step = 1 << min(nbytes.bit_length() - 4, 24)
    return -(-nbytes // step) * step


class AnswerReceiver:
    """A `TensorReceiver` for the values of one answer, which returns the call's segments to their pool.

    Values do not keep the pool alive, so that the memory of an ended stream is freed.
    """

    def __init__(self, segments: Sequence[Segment], pool: SegmentPool) -> None:
        self._segments = {segment.number: segment for segment in segments}
        self._pool = weakref.ref(pool)
        self._roots: dict[int, Array] = {}

    def get(self, tensor: pb.Tensor, spec: TensorSpec, *, own: bool = False) -> Array:
        """A read-only view of a segment; a copy of a small value."""
        segment = self._segments.get(tensor.shared.segment)
        if segment is None:
            raise Malformed(f"variable {spec}: segment {tensor.shared.segment} does not belong to this call")
        if own or spec.nbytes < MIN_BORROWED_BYTES:
            array = array_at(segment.memory, tensor.shared.offset, spec).copy()
        else:
            array = array_at(self._root(segment), tensor.shared.offset, spec)
        array.flags.writeable = False
        return array

    def close(self) -> None:
        """Ends the answer: segments in which no value lies return to the pool at once."""
        for number, segment in self._segments.items():
            if number not in self._roots:
                _give_back(self._pool, segment)
        self._roots.clear()

    def _root(self, segment: Segment) -> Array:
        """A segment as one array, which lives as long as any of its views (numpy's `base`).

        It views a memoryview: if it were a view of an array, its own views would keep that array alive in its place.
        """
        root = self._roots.get(segment.number)
        if root is None:
            root = self._roots[segment.number] = np.frombuffer(segment.memory.data, np.uint8)
            weakref.finalize(root, _give_back, self._pool, segment).atexit = False
        return root


def _give_back(pool: weakref.ref[SegmentPool], segment: Segment) -> None:
    if (alive := pool()) is not None:
        alive.give_back(segment)
