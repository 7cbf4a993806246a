"""Frames of a Transfer as bytes: a header that protobuf writes and reads, and elements that it never copies.

A frame is valid protobuf, but its elements, in `data` or `chunk`, are written after the header and parsed by hand: they
are copied once when sent and not at all when received; protobuf copies them twice each. May import errors and v1.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from pswire.errors import Malformed
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
    """A frame of a header and elements, those of `data` end to end; without `data`, the header alone."""
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
    """A received frame: the header as read by protobuf, and elements borrowed from the frame's bytes, if any."""

    header: pb.Frame
    data: memoryview | None = None
    chunk: memoryview | None = None


def incoming(frame: bytes) -> Incoming:
    """Separates the header and the elements of a frame. Raises `Malformed`."""
    elements: dict[int, memoryview] = {}
    rest: list[bytes] = []
    place, end, fields = 0, len(frame), 0
    while place < end:
        begin = place
        tag, place = _read_varint(frame, place)
        fields += 1
        if tag & 7 != _LENGTH_DELIMITED or fields > _MAX_FIELDS:
            raise Malformed(_NOT_A_FRAME.format(end))  # a Frame has no fields of another kind, and not so many
        length, place = _read_varint(frame, place)
        place += length
        if place > end:
            raise Malformed(_NOT_A_FRAME.format(end))
        if tag in (_DATA, _CHUNK):
            elements[tag] = memoryview(frame)[place - length : place]
        elif tag != _PADDING:
            rest.append(frame[begin:place])
    try:
        header = pb.Frame.FromString(rest[0] if len(rest) == 1 else b"".join(rest))
    except DecodeError:
        raise Malformed(_NOT_A_FRAME.format(end)) from None
    return Incoming(header, elements.get(_DATA), elements.get(_CHUNK))


_NOT_A_FRAME = "{:,} bytes that are not a paramserver.v1.Frame"


def _read_varint(frame: bytes, place: int) -> tuple[int, int]:
    """The number at `place`, of at most 10 bytes, and the position after it."""
    number = 0
    for index, byte in enumerate(frame[place : place + 10]):
        if byte < 0x80:
            return number | byte << 7 * index, place + index + 1
        number |= (byte & 0x7F) << 7 * index
    raise Malformed(_NOT_A_FRAME.format(len(frame)))
