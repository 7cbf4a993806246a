"""The stream tensor transport: elements follow their message, in its frame or in chunks; small ones are inside it.

The bytes of all tensors of a message run end to end, in its order, and are cut every `CHUNK` bytes. A receiver
allocates nothing until `allocate`: until then its arrays are placeholders with the right shape and dtype but no memory,
so that everything a message declares can be checked first. May import values, errors, frames and the generated code.
"""

import itertools
from collections import deque
from collections.abc import Iterator

import numpy as np

from pswire.errors import Malformed, TooLarge
from pswire.tensors.frame import Incoming, chunk, with_data
from pswire.tensors.shared_memory import Region
from pswire.tensors.transport import CHUNK, MAX_INLINE_MESSAGE, InlineReceiver, TensorReceiver, check_elements
from pswire.tensors.values import DTYPES, Array, TensorSpec, bytes_of
from pswire.v1 import paramserver_pb2 as pb

#: A tensor of fewer bytes than this travels inside its message: protobuf copies it in less time.
INLINE_BELOW = 1 << 10

#: Bytes that these tensors may have together in one message.
MAX_INLINED = 64 << 10

_INLINE = InlineReceiver()


class StreamSender:
    """Collects the arrays of one message, and makes frames of them.

    Arrays in `region` stay in shared memory. Arrays of fewer bytes than `few` travel inside the message, up to
    `MAX_INLINED` in all.

    Attributes:
        shared_bytes, inline_bytes: of the arrays that stay in shared memory, and of those inside the message.
        nbytes: of the arrays that follow the message.
        data: their elements, in order.
    """

    def __init__(self, region: Region | None = None, *, few: int = INLINE_BELOW) -> None:
        self._region, self._few = region, few
        self.shared_bytes = self.inline_bytes = self.nbytes = 0
        self.data: list[memoryview] = []

    def put(self, array: Array, tensor: pb.Tensor) -> None:
        """Borrows `array` until the last frame is sent; copies it if it is small, big-endian or not in C order."""
        if self._region is not None and (offset := self._region.offset_of(array)) is not None:
            tensor.shared.segment, tensor.shared.offset = self._region.segment, offset
            self.shared_bytes += array.nbytes
            return
        if array.nbytes < self._few and self.inline_bytes + array.nbytes <= MAX_INLINED:
            self.inline_bytes += array.nbytes
            tensor.inline = array.astype(DTYPES[tensor.dtype], copy=False).tobytes()
            return
        tensor.streamed = True
        data = bytes_of(np.ascontiguousarray(array, DTYPES[tensor.dtype]))
        if data:
            self.data.append(data)
            self.nbytes += len(data)

    def frames(self, header: pb.Frame) -> Iterator[bytes]:
        """The header with all elements; above `MAX_INLINE_MESSAGE` bytes, the header and then frames of chunks."""
        if self.nbytes <= MAX_INLINE_MESSAGE:
            yield with_data(header, self.data)
        else:
            yield with_data(header, ())
            yield from map(chunk, self.chunks())

    def chunks(self) -> Iterator[list[memoryview]]:
        """The elements of all arrays in pieces that make `CHUNK` bytes together; only the last may be less."""
        pieces: list[memoryview] = []
        left = CHUNK
        for data in self.data:
            while data:
                pieces.append(data[:left])
                data = data[left:]
                left -= len(pieces[-1])
                if not left:
                    yield pieces
                    pieces, left = [], CHUNK
        if pieces:
            yield pieces


class StreamReceiver:
    """Receives the tensors of one message: decode it, check the placeholders, `allocate`, decode again, `feed`.

    One decoding is enough if all elements are there already: inside the message, in the `data` of its frame (read-only)
    or in `shared` memory. Streamed tensors are identified by their order, so both decodings must be of one message.
    `follows`: bytes that come behind the frame, if that is known.

    Attributes:
        nbytes: of the tensors that follow in chunks, as the decoded message announces.
    """

    def __init__(
        self, data: memoryview | None = None, shared: TensorReceiver | None = None, follows: int | None = None
    ) -> None:
        self.nbytes = 0
        self._shared, self._follows = shared, follows
        self._data, self._used = data, 0
        self._specs: list[TensorSpec] = []  # of the tensors that follow in chunks
        self._arrays: Iterator[Array] | None = None
        self._gaps: deque[tuple[TensorSpec, memoryview]] = deque()  # the memory that is not filled yet, in order

    def get(self, tensor: pb.Tensor, spec: TensorSpec, *, own: bool = False) -> Array:
        """The array; for a streamed tensor a read-only placeholder, and after `allocate` the array to `feed`."""
        place = tensor.WhichOneof("place")
        if place == "inline":
            return _INLINE.get(tensor, spec)
        if place == "shared":
            if self._shared is None:
                raise Malformed(f"variable {spec}: its elements are in shared memory, but none is attached here")
            return self._shared.get(tensor, spec, own=own)
        if not tensor.streamed:
            return _INLINE.get(tensor, spec)  # which refuses it
        if self._data is not None:
            return self._from_data(self._data, spec)
        if self._arrays is not None:
            return next(self._arrays)
        self._specs.append(spec)
        self.nbytes += spec.nbytes
        dtype = DTYPES[spec.dtype]
        return np.ndarray(spec.shape, dtype, buffer=bytes(dtype.itemsize), strides=(0,) * len(spec.shape))

    def _from_data(self, data: memoryview, spec: TensorSpec) -> Array:
        begin, self._used = self._used, self._used + spec.nbytes
        if self._used > len(data):
            raise Malformed(f"variable {spec}: the data of its frame, {len(data)} bytes, ends before its elements")
        array = np.frombuffer(data[begin : self._used], DTYPES[spec.dtype]).reshape(spec.shape)
        if not array.flags.aligned:
            array = array.copy()  # after a tensor of odd size
            array.flags.writeable = False
        check_elements(array, spec)
        return array

    def check_data(self) -> None:
        """Raises `Malformed` if the frame has other data than its tensors, or behind it; call it after decoding."""
        if self._data is not None and self._used != len(self._data):
            raise Malformed(f"tensors of {self._used} bytes were declared, but {len(self._data)} bytes were received")
        if self._follows is not None and self._follows != self.nbytes:
            raise Malformed(f"tensors of {self.nbytes} bytes were declared, but {self._follows} bytes follow")

    def allocate(self) -> None:
        """Allocates the arrays, or raises `TooLarge`; call it once, when `nbytes` and the placeholders were checked."""
        try:
            arrays = [np.empty(spec.shape, DTYPES[spec.dtype]) for spec in self._specs]
        except MemoryError as error:
            raise TooLarge(f"no memory for tensors of {self.nbytes} bytes: {error}") from error
        gaps = zip(self._specs, map(bytes_of, arrays), strict=True)
        self._gaps.extend((spec, gap) for spec, gap in gaps if gap)
        self._arrays = iter(arrays)

    def feed(self, frame: Incoming) -> None:
        """Copies the chunk of a frame into the allocated arrays.

        `Malformed`: the frame has none, or more than was declared, or an invalid bool.
        """
        data = frame.chunk
        if not data:
            got = frame.header.WhichOneof("piece") or ("nothing" if data is None else "an empty one")
            raise Malformed(f"a chunk of data must follow in a transfer, got {got}")
        self.take(data)

    def take(self, data: memoryview) -> None:
        """Copies bytes that follow into the allocated arrays; raises `Malformed` as `feed` does."""
        while data:
            if not self._gaps:
                raise Malformed(f"tensors of {self.nbytes} bytes were declared, but {len(data)} more bytes arrived")
            gap = self._gaps[0][1]
            taken = min(len(gap), len(data))
            gap[:taken] = data[:taken]
            self.filled(taken)
            data = data[taken:]

    def gaps(self, most: int) -> list[memoryview]:
        """The memory that is filled next, in order, of `most` arrays: fill it from its begin, then call `filled`."""
        return [gap for _, gap in itertools.islice(self._gaps, most)]

    def filled(self, nbytes: int) -> None:
        """That many bytes of `gaps` have arrived. Raises `Malformed` for an invalid bool."""
        while nbytes:
            spec, gap = self._gaps.popleft()
            taken = min(len(gap), nbytes)
            if spec.dtype == "bool":
                check_elements(np.frombuffer(gap[:taken], np.uint8), spec)
            if taken < len(gap):
                self._gaps.appendleft((spec, gap[taken:]))
            nbytes -= taken

    @property
    def complete(self) -> bool:
        """True if the arrays are allocated and filled."""
        return self._arrays is not None and not self._gaps
