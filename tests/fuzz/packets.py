"""Inputs of several parts: each is a tag, its length in three bytes, and its bytes. Any bytes are such an input."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from google.protobuf.message import DecodeError, Message

Packet = tuple[int, bytes]


def pack(packets: Iterable[Packet]) -> bytes:
    """The input of these parts."""
    return b"".join([bytes([tag]) + len(part).to_bytes(3, "little") + part for tag, part in packets])


def unpack(data: bytes) -> list[Packet]:
    """The parts of an input; the last one may be shorter than its length."""
    packets, place = [], 0
    while place + 4 <= len(data):
        length = int.from_bytes(data[place + 1 : place + 4], "little")
        packets.append((data[place], data[place + 4 : place + 4 + length]))
        place += 4 + length
    return packets


def fields(packets: Iterable[Packet], kinds: Mapping[int, type[Message]]) -> set[str]:
    """The names of the messages of an input, and of the fields that they have, also within others."""
    found: set[str] = set()
    for tag, part in packets:
        if tag in kinds:
            with suppress(DecodeError):
                _add_fields(kinds[tag].FromString(part), found)
    return found


def _add_fields(message: Message, found: set[str]) -> None:
    found.add(message.DESCRIPTOR.full_name)
    for field, value in message.ListFields():
        found.add(field.full_name)
        if field.message_type is not None:
            for one in [value] if isinstance(value, Message) else value:
                if isinstance(one, Message):
                    _add_fields(one, found)
