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
    """

    def __init__(self) -> None:
        self._inline = InlineReceiver()
        self._specs: dict[str, TensorSpec] = {}
        self._arrays: dict[str, Array] | None = None
        self._gaps: deque[tuple[TensorSpec, memoryview]] = deque()  # what is not filled yet, in order

    def get(self, tensor: pb.Tensor, spec: TensorSpec) -> Array:
        """Before `allocate` a hollow array of zeros, read-only; afterwards the one that `feed` fills."""
        if not tensor.streamed:
            return self._inline.get(tensor, spec)
        if self._arrays is not None:
            return self._arrays[spec.name]
        self._specs[spec.name] = spec
        dtype = DTYPES[spec.dtype]
        return np.ndarray(spec.shape, dtype, buffer=bytes(dtype.itemsize), strides=(0,) * len(spec.shape))

    @property
    def nbytes(self) -> int:
        """What the decoded message announces: the bytes of all its tensors that follow."""
        return sum(spec.nbytes for spec in self._specs.values())

    def allocate(self) -> None:
        """Makes the arrays; call it once, when `nbytes` and the hollow message are found to be right.

        Raises:
            TooLarge: there is no memory for them.
        """
        try:
            self._arrays = {name: np.empty(spec.shape, DTYPES[spec.dtype]) for name, spec in self._specs.items()}
        except MemoryError as error:
            raise TooLarge(f"no memory for tensors of {self.nbytes} bytes: {error}") from error
        self._gaps.extend((spec, _bytes_of(self._arrays[name])) for name, spec in self._specs.items() if spec.nbytes)

    def feed(self, chunk: bytes) -> None:
        """Copies the next bytes, as many as there are, to their place in the allocated arrays.

        Raises:
            Malformed: there are more bytes than declared, or a bool is neither 0 nor 1.
        """
        data = memoryview(chunk)
        while data:
            if not self._gaps:
                raise Malformed(f"tensors of {self.nbytes} bytes were declared, and {len(data)} bytes more have come")
            spec, gap = self._gaps.popleft()
            taken = min(len(gap), len(data))
            gap[:taken] = data[:taken]
            data = data[taken:]
            if taken < len(gap):
                self._gaps.appendleft((spec, gap[taken:]))
            elif self._arrays is not None:
                check_elements(self._arrays[spec.name], spec)

    @property
    def complete(self) -> bool:
        """Whether the arrays are there and filled."""
        return self._arrays is not None and not self._gaps


def _bytes_of(array: Array) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data
