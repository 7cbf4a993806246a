"""Protobuf as bytes: numbers and fields read by hand, and large messages parsed in slices. May import errors."""

import functools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from pswire.errors import Malformed

#: Bytes of a slice: protobuf parses one without giving up the interpreter's lock, in some 4 ms if it is hostile.
SLICE = 256 << 10

#: Occurrences allowed of one field number in a large message, unless the field has its own limit.
MAX_OTHERS = 1024

#: Bytes of one field: tensors of 2 MiB, which travel inside a message, and their description.
MAX_FIELD_BYTES = (2 << 20) + (64 << 10)


@functools.lru_cache(1024)
def varint(number: int) -> bytes:
    """A number as bytes."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """The number at `place`, of at most 10 bytes, and the position after it. Raises `ValueError`."""
    number = 0
    for index, byte in enumerate(data[place : place + 10]):
        if byte < 0x80:
            return number | byte << 7 * index, place + index + 1
        number |= (byte & 0x7F) << 7 * index
    raise ValueError("no varint")


def parse(proto: Proto, data: bytes, limits: Mapping[str, int] | None = None) -> None:
    """Parses a message into an empty `proto`. Raises `Malformed` for bytes that are no such message.

    With `limits`, the most entries of its lists by name, a large one is parsed in slices of whole fields: call it in a
    thread. It is `Malformed` if a list has more entries, before protobuf makes anything of them.
    """
    try:
        if limits is None or len(data) <= SLICE:
            proto.MergeFromString(data)
            return
        begin = 0
        for end in _ends(proto.DESCRIPTOR, data, limits):
            proto.MergeFromString(data[begin:end])
            begin = end
    except (DecodeError, ValueError):
        raise Malformed(f"{len(data):,} bytes that are not a {proto.DESCRIPTOR.full_name}") from None


def _ends(message: Any, data: bytes, limits: Mapping[str, int]) -> list[int]:  # noqa: ANN401 - a Descriptor
    """The ends of slices, each at the end of a field."""
    lists = {message.fields_by_name[name].number: limit for name, limit in limits.items()}
    counts: defaultdict[int, int] = defaultdict(int)
    ends, begin, place, size = [], 0, 0, len(data)
    while place < size:
        field = place
        if data[place] < 0x80:
            tag, place = data[place], place + 1
        else:
            tag, place = read_varint(data, place)
        kind = tag & 7
        if kind == 2:
            if place < size and data[place] < 0x80:
                place += data[place] + 1
            else:
                length, place = read_varint(data, place)
                place += length
        elif kind == 0:
            _, place = read_varint(data, place)
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        else:
            raise ValueError("a group")
        if place - field > MAX_FIELD_BYTES and place <= size:
            raise Malformed(f"{_named(message, tag)} has {MAX_FIELD_BYTES:,} bytes at most, got {place - field:,}")
        counts[tag] += 1
        if counts[tag] > (limit := lists.get(tag >> 3, MAX_OTHERS)):
            raise Malformed(f"{_named(message, tag)} has {limit:,} entries at most, and these {size:,} bytes have more")
        if place - begin >= SLICE:
            ends.append(place)
            begin = place
    if place > size:
        raise ValueError("the last field is cut")
    return ends if begin == size else [*ends, size]


def _named(message: Any, tag: int) -> str:  # noqa: ANN401 - a Descriptor
    field = message.fields_by_number.get(tag >> 3)
    return f"{message.name}.{f'field {tag >> 3}' if field is None else field.name}"
