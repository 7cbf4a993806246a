"""Messages of the direct transport as bytes: lengths, a header that protobuf reads, and elements that it never copies.

A connection begins with `GREETING` of the server, by which a worker knows that it has reached one of this version, and
a `Hello` of the worker (`paramserver.proto`). Then come the calls of a Transfer: a message is a prefix, its header (a
`Frame` without elements), zeros up to a multiple of `ALIGNMENT`, and the elements of its streamed tensors, end to end.
May import errors, limits, frames and the generated code.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import Message as Proto

from pswire.errors import Malformed
from pswire.limits import MAX_MESSAGE
from pswire.tensors.frame import ALIGNMENT, SplitFrame, split_with

#: The first bytes of a server, with the version of the direct transport.
GREETING = b"paramserver/1\r\n\0"

#: An array of fewer bytes is copied and sent with what is before it.
JOINED_BELOW = 16 << 10

#: Bytes of a Hello at most.
MAX_HELLO = 16 << 10

_PREFIX = struct.Struct("<4sIQ")
_MARK = b"psd1"

#: Bytes of a prefix: a mark, and the bytes of header and elements, little-endian.
PREFIX_BYTES = _PREFIX.size


class Lengths(NamedTuple):
    """Places in a message: the end of its header, and the begin and end of its elements."""

    header_end: int
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """Bytes of elements."""
        return self.end - self.begin


def message(header: Proto, data: Sequence[memoryview] = ()) -> list[bytes | memoryview]:
    """The pieces of a message: its prefix and header, and the elements; small ones are joined."""
    small: list[bytes | memoryview] = [opening(header, sum(map(len, data)))]
    pieces: list[bytes | memoryview] = []
    for one in data:
        if len(one) >= JOINED_BELOW:
            pieces += [b"".join(small), one] if small else [one]
            small = []
        else:
            small.append(one)
    return [*pieces, b"".join(small)] if small else pieces


def opening(header: Proto, elements: int) -> bytes:
    """The begin of a message: its prefix and header, behind which so many bytes of elements follow."""
    head = header.SerializeToString()
    return b"".join([_PREFIX.pack(_MARK, len(head), elements), head, bytes(-len(head) % ALIGNMENT)])


def lengths(prefix: bytes | memoryview, most: int = MAX_MESSAGE) -> Lengths:
    """What a prefix announces. Raises `Malformed` if it is none, or for a header of more than `most` bytes."""
    mark, header, elements = _PREFIX.unpack_from(prefix)
    if mark != _MARK:
        raise Malformed("a message of the direct transport begins otherwise: what was sent is another protocol")
    if header > most:
        raise Malformed(f"the header of a message has {most:,} bytes at most, this one {header:,}")
    end = PREFIX_BYTES + header
    begin = end + -header % ALIGNMENT
    return Lengths(end, begin, begin + elements)


def header_of(data: bytes | memoryview, found: Lengths) -> SplitFrame:
    """The header of a message that is there up to its elements; with those, if they are there too."""
    complete = len(data) >= found.end
    elements = memoryview(data).toreadonly()[found.begin : found.end] if found.elements and complete else None
    nbytes, follows = (found.end, 0) if complete else (found.begin, found.elements)
    return split_with(bytes(data[PREFIX_BYTES : found.header_end]), elements, nbytes, follows)
