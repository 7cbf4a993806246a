"""Records of a journal: well-formed protobufs with elements behind them (tags 0 and 1), or any bytes (2)."""

import struct

from psserver.storage import records
from pswire.v1 import state_pb2 as spb
from tests.fuzz.packets import unpack

COVERS = ["psserver.storage.records", "pswire.codec.tensors"]
KINDS = {0: spb.Record}


def run(data: bytes) -> None:
    packets = unpack(data)
    elements = b"".join([part for tag, part in packets if tag == 1])
    for tag, part in packets[:4]:
        if tag == 2:
            records.decode(part)
        elif tag != 1:
            head = struct.pack("<I", len(part)) + part
            message = records.decode(head + bytes(-len(head) % records.ALIGNMENT) + elements)
            records.decode(b"".join(records.encode(message)))
