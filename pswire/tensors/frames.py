"""Frames of a Transfer as bytes: a header that protobuf writes and reads, and elements that it never copies.

A frame is valid protobuf, but its elements, in `data` or `chunk`, are written after the header and parsed by hand: they
are copied once when sent and not at all when received; protobuf copies them twice each. May import errors, wire and v1.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import Message as Proto

from pswire.errors import Malformed
from pswire.tensors.wire import SLICE, parse, read_varint
from pswire.v1 import paramserver_pb2 as pb

#: Elements begin at a multiple of this in a frame with `data`, as Python's bytes objects do: arrays are aligned.
ALIGNMENT = 16

# Far more than valid frames have: each field costs much more time and memory here than its two bytes.
_MAX_FIELDS = 64

_LENGTH_DELIMITED = 2  # the wire type of bytes, strings and messages


@functools.lru_cache(1024)
def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_DATA, _CHUNK, _PADDING = (
    pb.Frame.DESCRIPTOR.fields_by_name[name].number << 3 | _LENGTH_DELIMITED for name in ("data", "chunk", "padding")
)


def with_data(header: pb.Frame, data: Sequence[memoryview]) -> bytes:
    """A frame of a header and the elements of `data`, end to end; without `data`, the header alone."""
    head = header.SerializeToString()
    if not data:
        return head
    begin, padded = _varint(_DATA) + _varint(sum(map(len, data))), _varint(_PADDING)
    padding = -(len(head) + len(padded) + 1 + len(begin)) % ALIGNMENT
    return b"".join([head, padded, _varint(padding), bytes(padding), begin, *data])


def chunk(pieces: Sequence[memoryview]) -> bytes:
    """A frame of elements alone, the pieces end to end."""
    return b"".join([_varint(_CHUNK), _varint(sum(map(len, pieces))), *pieces])


@dataclass(frozen=True, slots=True)
class Incoming:
    """A received frame: the header as read by protobuf, and elements borrowed from the frame's bytes, if any.

    `nbytes` is the size of the header.
    """

    header: pb.Frame
    data: memoryview | None = None
    chunk: memoryview | None = None
    nbytes: int = field(default=0, compare=False)


@dataclass(slots=True)
class SplitFrame:
    """The bytes of a frame: `head` is for protobuf to parse, field by field; `elements` follow it."""

    nbytes: int
    head: list[bytes]
    head_bytes: int
    elements: dict[int, memoryview]

    def parse(self, parse: Callable[[Proto, bytes], None] = parse) -> Incoming:
        """The frame, whose message is parsed by `parse`. Raises `Malformed`.

        With many bytes in its header, call it in a thread.
        """
        header = pb.Frame()
        for part in self.head:
            if len(part) <= SLICE:
                parse(header, part)
                continue
            tag, place = read_varint(part, 0)
            _, place = read_varint(part, place)
            piece = pb.Frame.DESCRIPTOR.fields_by_number.get(tag >> 3)
            if piece is None or piece.message_type is None:
                raise Malformed(_NOT_A_FRAME.format(self.nbytes))
            message = getattr(header, piece.name)
            message.SetInParent()
            parse(message, part[place:])
        return Incoming(header, self.elements.get(_DATA), self.elements.get(_CHUNK), self.head_bytes)


def split(frame: bytes) -> SplitFrame:
    """Separates the header and the elements of a frame, in microseconds. Raises `Malformed`."""
    elements: dict[int, memoryview] = {}
    rest: list[bytes] = []
    place, end, fields, head_bytes = 0, len(frame), 0, 0
    try:
        while place < end:
            begin = place
            tag, place = read_varint(frame, place)
            fields += 1
            if tag & 7 != _LENGTH_DELIMITED or fields > _MAX_FIELDS:
                raise ValueError  # a Frame has no fields of another kind, and fewer
            length, place = read_varint(frame, place)
            place += length
            if place > end:
                raise ValueError
            if tag in (_DATA, _CHUNK):
                elements[tag] = memoryview(frame)[place - length : place]
            elif tag != _PADDING:
                rest.append(frame[begin:place])
                head_bytes += place - begin
    except ValueError:
        raise Malformed(_NOT_A_FRAME.format(end)) from None
    return SplitFrame(end, rest, head_bytes, elements)


def incoming(frame: bytes) -> Incoming:
    """A received frame. Raises `Malformed`."""
    return split(frame).parse()


_NOT_A_FRAME = "{:,} bytes that are not a paramserver.v1.Frame"
