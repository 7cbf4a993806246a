"""Inputs of several parts: each is a tag, its length in three bytes, and its bytes. Any bytes are such an input."""

from collections.abc import Iterable

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
