"""Tensors in the chunks that follow their message, for everything too large for one. May import values, errors, v1.

The bytes of all tensors of a message run end to end, in its order, and are cut every `CHUNK` bytes wherever a tensor
ends. A receiver allocates nothing before it is told to: until then the arrays that it gives are hollow, of the right
shape and dtype but without memory, so that all that a message declares can be checked first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from pswire.errors import Malformed, TooLarge
from pswire.lanes import CHUNK, check_elements
from pswire.lanes.inline import InlineReceiver
from pswire.v1 import paramserver_pb2 as pb
from pswire.values import DTYPES, Array, TensorSpec


class StreamSender:
    """Remembers the arrays of one message and cuts them into chunks."""

    def __init__(self) -> None:
        self._data: list[memoryview] = []

    def put(self, array: Array, tensor: pb.Tensor) -> None:
        """Borrows `array` until the last chunk is out; only what is not little-endian in C order is copied here."""
        tensor.streamed = True
        self._data.append(_bytes_of(np.ascontiguousarray(array, DTYPES[tensor.dtype])))

    def chunks(self) -> Iterator[bytes]:
        """The elements of all arrays, copied once: chunks of `CHUNK` bytes, of which only the last may be shorter."""
        pieces: list[memoryview] = []
        room = CHUNK
        for data in self._data:
            while data:
                pieces.append(data[:room])
                data = data[room:]
                room -= len(pieces[-1])
                if not room:
                    yield b"".join(pieces)
                    pieces, room = [], CHUNK
        if pieces:
            yield b"".join(pieces)


class StreamReceiver:
    """Puts the tensors of one message together: decode it, check what is hollow, `allocate`, decode again, `feed`.

    Tensors that are inside of their message are taken from there; if all are, the first decoding is all there is to do.
    The two decodings are of the same message: a tensor is known by its place in the order of them all.
    """

    def __init__(self) -> None:
        self._inline = InlineReceiver()
        self._specs: list[TensorSpec] = []
        self._arrays: list[Array] | None = None
        self._given = 0
        self._gaps: deque[tuple[int, memoryview]] = deque()  # what is not filled yet, in order

    def get(self, tensor: pb.Tensor, spec: TensorSpec) -> Array:
        """Before `allocate` a hollow array of zeros, read-only; afterwards the one that `feed` fills."""
        if not tensor.streamed:
            return self._inline.get(tensor, spec)
        if self._arrays is not None:
            self._given += 1
            return self._arrays[self._given - 1]
        self._specs.append(spec)
        dtype = DTYPES[spec.dtype]
        return np.ndarray(spec.shape, dtype, buffer=bytes(dtype.itemsize), strides=(0,) * len(spec.shape))

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

    def feed(self, chunk: bytes) -> None:
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
            data = data[taken:]
            if taken < len(gap):
                self._gaps.appendleft((place, gap[taken:]))
            elif self._arrays is not None:
                check_elements(self._arrays[place], self._specs[place])

    @property
    def complete(self) -> bool:
        """Whether the arrays are there and filled."""
        return self._arrays is not None and not self._gaps


def _bytes_of(array: Array) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data
