"""Tensors in shared memory: a message names the segment of its stream, and the offset, where the elements are.

Ownership: a segment belongs to one call at a time. Until the answer the server reads the tensors of the call
there and writes values into the call's answer region; then the worker owns all of it again, and reuses a segment when
no array refers to it. May import values, errors and v1.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from pswire.errors import Malformed, TooLarge
from pswire.tensors.transport import check_elements
from pswire.tensors.values import DTYPES, Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

#: Every array begins at a multiple of this: a cache line, and enough for any vector instruction.
ALIGNMENT = 64


def aligned(nbytes: int) -> int:
    """`nbytes`, rounded up to a multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def bytes_needed(sizes: Iterable[int]) -> int:
    """The bytes that arrays of these sizes, in bytes, need one after the other."""
    return sum([aligned(nbytes) for nbytes in sizes])


def array_at(memory: Array, offset: int, spec: TensorSpec) -> Array:
    """A view of the array that `spec` describes; `Malformed` if it is not inside the memory and aligned."""
    _check_place(f"variable {spec}", memory, offset, spec.nbytes)
    return np.ndarray(spec.shape, DTYPES[spec.dtype], memory, offset)


def _check_place(name: str, memory: Array, offset: int, nbytes: int) -> None:
    if offset % ALIGNMENT or not 0 <= offset <= offset + nbytes <= len(memory):
        raise Malformed(
            f"{name}: its {nbytes:,} bytes must be inside the {len(memory):,} bytes of their segment and begin at a "
            f"multiple of {ALIGNMENT}, but they begin at {offset:,}"
        )


class Region:
    """Part of a segment, allocated sequentially: a `TensorSender`, and a `pswire.messages.Allocator`.

    `segment` is its number on its stream; the part begins at `offset` and is by default all that is for arrays. Raises
    `Malformed` if it is not inside the segment and aligned.
    """

    def __init__(self, segment: int, memory: Array, offset: int = 0, nbytes: int | None = None) -> None:
        nbytes = len(memory) - offset if nbytes is None else nbytes
        _check_place("answer region", memory, offset, nbytes)
        self.segment, self.memory = segment, memory
        self._next, self._end = offset, offset + nbytes
        self._address: int = memory.__array_interface__["data"][0]

    def _reserve(self, nbytes: int) -> int | None:
        """The offset of the next `nbytes`; None if fewer are left."""
        offset = self._next
        if offset + nbytes > self._end:
            return None
        self._next += aligned(nbytes)
        return offset

    def take(self, spec: TensorSpec) -> Array | None:
        """The next array, writable; None if too little is left."""
        offset = self._reserve(spec.nbytes)
        return None if offset is None else array_at(self.memory, offset, spec)

    def put(self, array: Array, tensor: pb.Tensor) -> None:
        """As in `TensorSender`, but the array may be changed afterwards. For its size see `bytes_needed`."""
        offset = self._reserve(array.nbytes)
        if offset is None:
            raise TooLarge(f"no room for the {array.nbytes:,} bytes of {tensor.name!r} in a segment of shared memory")
        np.ndarray(array.shape, DTYPES[tensor.dtype], self.memory, offset)[...] = array
        tensor.shared.segment, tensor.shared.offset = self.segment, offset

    def offset_of(self, array: Array) -> int | None:
        """The offset in the segment of an array that was taken from this region; None for any other."""
        offset: int = array.__array_interface__["data"][0] - self._address
        inside = offset >= 0 and offset + array.nbytes <= self._next and offset % ALIGNMENT == 0
        return offset if inside and array.flags.c_contiguous else None


class SharedReceiver:
    """Finds the tensors of one message in the segments of its stream, by their numbers.

    Copies at most the size of all segments at each of two decodings: overlapping tensors could take any memory.

    Attributes:
        tensors, nbytes: of those that were found, counted again at each decoding.
    """

    def __init__(self, segments: Mapping[int, Array]) -> None:
        self._segments = segments
        self._copied = 0
        self.tensors = self.nbytes = 0

    def get(self, tensor: pb.Tensor, spec: TensorSpec, *, own: bool = False) -> Array:
        """A view; a copy of row numbers and bools, which must stay as they were when checked."""
        memory = self._segments.get(tensor.shared.segment)
        if memory is None:
            raise Malformed(f"variable {spec}: segment {tensor.shared.segment} was not attached on this stream")
        array = array_at(memory, tensor.shared.offset, spec)
        self.tensors += 1
        self.nbytes += array.nbytes
        if own or spec.dtype == "bool":
            self._copied += spec.nbytes
            if self._copied > 2 * sum(map(len, self._segments.values())):
                raise Malformed(f"variable {spec}: its place overlaps those of other tensors of the message")
            array = array.copy()
            check_elements(array, spec)
        return array
