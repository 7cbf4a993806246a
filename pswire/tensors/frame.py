"""Frames of a Transfer as bytes: a header that protobuf writes and reads, and elements that it never copies.

A frame is valid protobuf, but its elements, in `data` or `chunk`, are written after the header and parsed by hand: they
are copied once when sent and not at all when received; protobuf copies them twice each. May import errors, wire and v1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import Message as Proto

from pswire.errors import Malformed
from pswire.tensors.wire import SLICE, parse, read_varint, varint
from pswire.v1 import paramserver_pb2 as pb

#: Elements begin at a multiple of this in a frame with `data`, as Python's bytes objects do: arrays are aligned.
ALIGNMENT = 16

# Far more than valid frames have: each field costs much more time and memory here than its two bytes.
_MAX_FIELDS = 64

_LENGTH_DELIMITED = 2  # the wire type of bytes, strings and messages


_DATA, _CHUNK, _PADDING = (
    pb.Frame.DESCRIPTOR.fields_by_name[name].number << 3 | _LENGTH_DELIMITED for name in ("data", "chunk", "padding")
)

#: The tags of the messages that a frame may have.
_PIECES = {
    one.number << 3 | _LENGTH_DELIMITED
    for one in pb.Frame.DESCRIPTOR.oneofs_by_name["piece"].fields
    if one.message_type
}


def with_data(header: pb.Frame, data: Sequence[memoryview]) -> bytes:
    """A frame of a header and the elements of `data`, end to end; without `data`, the header alone."""
    head = header.SerializeToString()
    if not data:
        return head
    begin, padded = varint(_DATA) + varint(sum(map(len, data))), varint(_PADDING)
    padding = -(len(head) + len(padded) + 1 + len(begin)) % ALIGNMENT
    return b"".join([head, padded, varint(padding), bytes(padding), begin, *data])


def chunk(pieces: Sequence[memoryview]) -> bytes:
    """A frame of elements alone, the pieces end to end."""
    return b"".join([varint(_CHUNK), varint(sum(map(len, pieces))), *pieces])


@dataclass(frozen=True, slots=True)
class Incoming:
    """A received frame: the header as read by protobuf, and what is borrowed from the frame's bytes.

    Attributes:
        data, chunk: elements, if any.
        nbytes: of the header.
        message: the bytes of the message in the header; None if it has none, or has it in several pieces.
        follows: bytes of elements that come behind the frame; None if that is not known.
    """

    header: pb.Frame
    data: memoryview | None = None
    chunk: memoryview | None = None
    nbytes: int = field(default=0, compare=False)
    message: memoryview | None = field(default=None, compare=False)
    follows: int | None = field(default=None, compare=False)


@dataclass(slots=True)
class SplitFrame:
    """The bytes of a frame: `head` is for protobuf to parse, field by field; `elements` follow it.

    `messages` has those of each field that has a message in it; `follows` is that of `Incoming`.
    """

    nbytes: int
    head: list[bytes]
    head_bytes: int
    elements: dict[int, memoryview]
    messages: list[memoryview]
    follows: int | None = None

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
        message = self.messages[0] if len(self.messages) == 1 else None
        data, chunk = self.elements.get(_DATA), self.elements.get(_CHUNK)
        return Incoming(header, data, chunk, self.head_bytes, message, self.follows)


def split(frame: bytes) -> SplitFrame:
    """Separates the header and the elements of a frame, in microseconds. Raises `Malformed`."""
    elements: dict[int, memoryview] = {}
    rest: list[bytes] = []
    messages: list[memoryview] = []
    place, end, fields, head_bytes = 0, len(frame), 0, 0
    try:
        while place < end:
            begin = place
            if (tag := frame[place]) < 0x80:
                place += 1
            else:
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
                if tag in _PIECES:
                    messages.append(memoryview(frame)[place - length : place])
    except ValueError:
        raise Malformed(_NOT_A_FRAME.format(end)) from None
    return SplitFrame(end, rest, head_bytes, elements, messages)


def split_with(head: bytes, data: memoryview | None, nbytes: int, follows: int) -> SplitFrame:
    """A frame whose elements come apart from its header, or `follow`; with the bytes of all. Raises `Malformed`."""
    found = split(head)
    if found.elements:
        raise Malformed("the header of a direct message has no elements: they follow it")
    if data is not None:
        found.elements[_DATA] = data
    found.nbytes, found.follows = nbytes, follows
    return found


def incoming(frame: bytes) -> Incoming:
    """A received frame. Raises `Malformed`."""
    return split(frame).parse()


_NOT_A_FRAME = "{:,} bytes that are not a paramserver.v1.Frame"
