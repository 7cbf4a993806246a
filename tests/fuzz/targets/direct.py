"""Sequences of calls to a new shard, those on streams over direct connections; the first byte is its policy.

Bytes as they are go to the server, and to a worker as an answer.
"""

import socket
from contextlib import suppress

from pswire.errors import ParamServerError
from pswire.tensors.stream import StreamReceiver
from psworker.transport.direct_stream import DirectStream
from tests.fuzz.packets import unpack
from tests.fuzz.served_shard import KINDS, RAW, serve

__all__ = ["COVERS", "KINDS", "run"]

HEAD = 1
COVERS = ["pswire.tensors.direct", "psserver.rpc.direct.connection", "psworker.transport.direct_stream"]


def received(data: bytes) -> None:
    """Read bytes as a worker reads an answer."""
    ours, theirs = socket.socketpair()
    stream = DirectStream(theirs, b"", share=False)
    with ours, theirs, suppress(OSError, ParamServerError):
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        frame = stream.receive()
        StreamReceiver(frame.data, None, frame.follows).check_data()


def run(data: bytes) -> None:
    packets = unpack(data[1:])[:100]
    for tag, part in packets:
        if RAW <= tag < 255:
            received(part)
    serve(packets, policy=data[0] if data else 0, direct=True)
