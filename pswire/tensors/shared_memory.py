"""Tensors in shared memory: a message says in which segment of its stream the elements are, and where in it.

The memory is that of `pswire.tensors.segments`. When it may be used again is not known here: that is for those who send
messages and wait for their answers. May import values, errors and v1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from mmap import mmap

import numpy as np

from pswire.errors import Malformed, TooLarge
from pswire.tensors.segments import BEGIN
from pswire.tensors.transport import check_elements
from pswire.tensors.values import DTYPES, Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

#: Every array begins at a multiple of this: a cache line, and enough for any vector instruction.
ALIGNMENT = 64


#: Bytes of an array from which two threads copy it faster than one: 13 MB in 1.05 ms instead of 1.4.
HALVED = 4 << 20


def aligned(nbytes: int) -> int:
    """`nbytes`, rounded up to a multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def needed(sizes: Iterable[int]) -> int:
    """The bytes that arrays of these sizes, in bytes, need one after the other."""
    return sum([aligned(nbytes) for nbytes in sizes])


def array_at(memory: mmap, offset: int, spec: TensorSpec) -> Array:
    """The array that `spec` describes, `offset` bytes from the begin: a writable view.

    Raises:
        Malformed: it is not inside, or `offset` is no multiple of `ALIGNMENT`.
    """
    _check_place(spec, memory, offset, spec.nbytes)
    return np.ndarray(spec.shape, DTYPES[spec.dtype], memory, offset)


def _check_place(what: TensorSpec | str, memory: mmap, offset: int, nbytes: int) -> None:
    if offset % ALIGNMENT or not 0 <= offset <= offset + nbytes <= len(memory):
        name = what if isinstance(what, str) else f"variable {what}"
        raise Malformed(
            f"{name}: its {nbytes:,} bytes must be inside of the {len(memory):,} bytes of their segment and begin at a "
            f"multiple of {ALIGNMENT}, but they begin at {offset:,}"
        )


def place_of(array: Array, memories: Mapping[int, mmap]) -> tuple[int, int] | None:
    """In which of the segments a C-contiguous array lies, and its offset there; None if in none, or at an odd place."""
    address: int = array.__array_interface__["data"][0]
    for segment, memory in memories.items():
        offset: int = address - np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        if 0 <= offset <= offset + array.nbytes <= len(memory):
            return None if offset % ALIGNMENT or not array.flags.c_contiguous else (segment, offset)
    return None


class SharedAllocator:
    """A `pswire.messages.sizes.Allocator` in shared memory: `nbytes` from `offset` on.

    Raises:
        Malformed: they are not inside, or `offset` is no multiple of `ALIGNMENT`.
    """

    def __init__(self, memory: mmap, offset: int, nbytes: int) -> None:
        _check_place("room", memory, offset, nbytes)
        self._memory, self._next, self._end = memory, offset, offset + nbytes

    def take(self, spec: TensorSpec) -> Array | None:
        """The next array; None if there is no room left for it."""
        offset = self.place(spec.nbytes)
        return None if offset is None else array_at(self._memory, offset, spec)

    def place(self, nbytes: int) -> int | None:
        """The offset of the next so many bytes; None if there are not so many left."""
        offset = self._next
        if offset + nbytes > self._end:
            return None
        self._next = offset + aligned(nbytes)
        return offset


class SharedSender:
    """Puts the arrays of one message into a segment, one after the other, each copied once.

    Args:
        memory: the segment.
        segment: its number on the stream.
        helper: a thread that copies the first half of what is large, while the caller copies the other.
    """

    def __init__(self, memory: mmap, segment: int, helper: Executor | None = None) -> None:
        self._memory, self._segment, self._helper = memory, segment, helper
        self._room = SharedAllocator(memory, BEGIN, len(memory) - BEGIN)

    def put(self, array: Array, tensor: pb.Tensor) -> None:
        """Copies the elements; `tensor.dtype` is already set. The array is not needed any more afterwards.

        Raises:
            TooLarge: it does not fit; `needed` tells beforehand what fits.
        """
        offset = self._room.place(array.nbytes)
        if offset is None:
            raise TooLarge(f"no room for the {array.nbytes:,} bytes of {tensor.name!r} in a segment of shared memory")
        self._copy(np.ndarray(array.shape, DTYPES[tensor.dtype], self._memory, offset), array)
        place = tensor.shared
        place.segment, place.offset = self._segment, offset

    def _copy(self, out: Array, array: Array) -> None:
        if self._helper is None or array.nbytes < HALVED or len(array) < 2:
            out[...] = array
            return
        half = len(array) // 2
        first = self._helper.submit(np.copyto, out[:half], array[:half])
        out[half:] = array[half:]
        first.result()


class SharedReceiver:
    """Finds the tensors of one message that are in shared memory.

    Copies no more than the segments have, times the two that `StreamReceiver` may decode a message: places that overlap
    would otherwise have a small message take any amount of memory.

    Args:
        segments: the segments of the stream, by their numbers.
    """

    def __init__(self, segments: Mapping[int, mmap]) -> None:
        self._segments = segments
        self._copied = 0

    def get(self, tensor: pb.Tensor, spec: TensorSpec, *, own: bool = False) -> Array:
        """A view, in whose place an answer's values may be put; a copy of what the other side must not change any more.

        That is what numpy does not survive if it is wrong: numbers of rows, and bools.
        """
        memory = self._segments.get(tensor.shared.segment)
        if memory is None:
            raise Malformed(f"variable {spec}: segment {tensor.shared.segment} was not attached on this stream")
        array = array_at(memory, tensor.shared.offset, spec)
        if own or spec.dtype == "bool":
            self._check_overlap(spec)
            array = array.copy()
            check_elements(array, spec)
        return array

    def _check_overlap(self, spec: TensorSpec) -> None:
        self._copied += spec.nbytes
        if self._copied > 2 * sum(map(len, self._segments.values())):
            raise Malformed(f"variable {spec}: its place overlaps those of other tensors of the message")
