"""Tensors behind their message: in the same frame, or for more than that in the chunks that follow; tiny ones inside.

The bytes of all tensors of a message run end to end, in its order; chunks are cut every `CHUNK` bytes wherever a tensor
ends. A receiver allocates nothing before it is told to: until then the arrays that it gives are hollow, of the right
shape and dtype but without memory, so that all that a message declares can be checked first.
May import values, errors, frames and the generated code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from pswire.errors import Malformed, TooLarge
from pswire.tensors import frames
from pswire.tensors.inline import InlineReceiver
from pswire.tensors.shared_memory import Region
from pswire.tensors.transport import CHUNK, FEW, INLINE, MOST_OF_FEW, TensorReceiver, check_elements
from pswire.tensors.values import DTYPES, Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb


class StreamSender:
    """Remembers the arrays of one message, and makes frames of them.

    Args:
        region: shared memory; arrays that lie there stay there.
        few: arrays of fewer bytes than this travel inside of the message, `MOST_OF_FEW` in all.
    """

    def __init__(self, region: Region | None = None, *, few: int = FEW) -> None:
        self._region, self._few = region, few
        self._data: list[memoryview] = []
        self._inline = 0

    def put(self, array: Array, tensor: pb.Tensor) -> None:
        """Borrows `array` until the last frame is out; only what is not little-endian in C order is copied here.

        And what travels inside of the message.
        """
        offset = None if self._region is None else self._region.offset_of(array)
        if self._region is not None and offset is not None:
            tensor.shared.segment, tensor.shared.offset = self._region.segment, offset
            return
        if array.nbytes < self._few and self._inline + array.nbytes <= MOST_OF_FEW:
            self._inline += array.nbytes
            tensor.inline = array.astype(DTYPES[tensor.dtype], copy=False).tobytes()
            return
        tensor.streamed = True
        data = _bytes_of(np.ascontiguousarray(array, DTYPES[tensor.dtype]))
        if data:
            self._data.append(data)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(map(len, self._data))

    def frames(self, header: pb.Frame) -> Iterator[bytes]:
        """The header with all elements; if they are more than `INLINE` bytes, the header and then frames of chunks."""
        if self.nbytes <= INLINE:
            yield frames.with_data(header, self._data)
        else:
            yield frames.with_data(header, ())
            yield from map(frames.chunk, self.chunks())

    def chunks(self) -> Iterator[list[memoryview]]:
        """The elements of all arrays in pieces that make `CHUNK` bytes together; only the last may be less."""
        pieces: list[memoryview] = []
        room = CHUNK
        for data in self._data:
            while data:
                pieces.append(data[:room])
                data = data[room:]
                room -= len(pieces[-1])
                if not room:
                    yield pieces
                    pieces, room = [], CHUNK
        if pieces:
            yield pieces


class StreamReceiver:
    """Puts the tensors of one message together: decode it, check what is hollow, `allocate`, decode again, `feed`.

    Tensors that are there already, inside of their message, in the data that came with it, or in shared memory, are
    taken from there; if all are, the first decoding is all there is to do. The two decodings are of the same message: a
    tensor is known by its place in the order of them all.

    Args:
        data: what came with the header, if anything: arrays over it are read-only.
        shared: gives the tensors that are in shared memory, if any is attached.
    """

    def __init__(self, data: memoryview | None = None, shared: TensorReceiver | None = None) -> None:
        self._inline = InlineReceiver()
        self._segments = shared
        self._data = data
        self._used = 0
        self._specs: list[TensorSpec] = []
        self._arrays: list[Array] | None = None
        self._given = 0
        self._gaps: deque[tuple[int, memoryview]] = deque()  # what is not filled yet, in order

    def get(self, tensor: pb.Tensor, spec: TensorSpec, *, own: bool = False) -> Array:
        """What is there already; or before `allocate` a hollow array of zeros, read-only, then the one to `feed`."""
        place = tensor.WhichOneof("place")
        if place == "shared":
            if self._segments is None:
                raise Malformed(f"variable {spec}: it is said to be in shared memory, and none is attached here")
            return self._segments.get(tensor, spec, own=own)
        if not tensor.streamed:
            return self._inline.get(tensor, spec)
        if self._data is not None:
            return self._from_data(self._data, spec)
        if self._arrays is not None:
            self._given += 1
            return self._arrays[self._given - 1]
        self._specs.append(spec)
        dtype = DTYPES[spec.dtype]
        return np.ndarray(spec.shape, dtype, buffer=bytes(dtype.itemsize), strides=(0,) * len(spec.shape))

    def _from_data(self, data: memoryview, spec: TensorSpec) -> Array:
        begin, self._used = self._used, self._used + spec.nbytes
        if self._used > len(data):
            raise Malformed(f"variable {spec}: the data of its frame, {len(data)} bytes, ends before its elements")
        array = np.frombuffer(data[begin : self._used], DTYPES[spec.dtype]).reshape(spec.shape)
        if not array.flags.aligned:
            array = array.copy()  # what is behind a tensor of odd size
            array.flags.writeable = False
        check_elements(array, spec)
        return array

    def check_data(self) -> None:
        """Raises `Malformed` if more data came with the header than its tensors have; call it after decoding."""
        if self._data is not None and self._used != len(self._data):
            raise Malformed(f"tensors of {self._used} bytes were declared, and {len(self._data)} came with them")

    @property
    def nbytes(self) -> int:
        """What the decoded message announces: the bytes of all its tensors that follow."""
        return sum(spec.nbytes for spec in self._specs)

    def allocate(self) -> None:
        """Makes the arrays; call it once, when `nbytes` and the hollow message are found to be right.

        Raises:
            TooLarge: there is no memory for them.
        """
        try:
            self._arrays = [np.empty(spec.shape, DTYPES[spec.dtype]) for spec in self._specs]
        except MemoryError as error:
            raise TooLarge(f"no memory for tensors of {self.nbytes} bytes: {error}") from error
        self._gaps.extend((place, _bytes_of(array)) for place, array in enumerate(self._arrays) if array.nbytes)

    def feed(self, chunk: bytes | memoryview) -> None:
        """Copies the next bytes, as many as there are, to their place in the allocated arrays.

        Raises:
            Malformed: there are more bytes than declared, or a bool is neither 0 nor 1.
        """
        data = memoryview(chunk)
        while data:
            if not self._gaps:
                raise Malformed(f"tensors of {self.nbytes} bytes were declared, and {len(data)} bytes more have come")
            place, gap = self._gaps.popleft()
            taken = min(len(gap), len(data))
            gap[:taken] = data[:taken]
            check_elements(np.frombuffer(gap[:taken], np.uint8), self._specs[place])
            data = data[taken:]
            if taken < len(gap):
                self._gaps.appendleft((place, gap[taken:]))

    @property
    def complete(self) -> bool:
        """Whether the arrays are there and filled."""
        return self._arrays is not None and not self._gaps


def _bytes_of(array: Array) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data
