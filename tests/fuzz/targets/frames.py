"""Frames of a Transfer: their header and elements apart, a message of the first, the elements of the others."""

from pswire.codec import from_frame
from pswire.tensors.frame import incoming
from pswire.tensors.stream import StreamReceiver
from pswire.v1 import paramserver_pb2 as pb
from tests.fuzz.packets import unpack

COVERS = ["pswire.tensors.frame", "pswire.tensors.stream", "pswire.codec.tensors"]
KINDS = {0: pb.Frame}

#: Bytes that a call may announce, as admission control allows.
MEMORY = 1 << 20


def run(data: bytes) -> None:
    frames = iter(unpack(data))
    for _, part in frames:
        frame = incoming(part)
        receiver = StreamReceiver(frame.data)
        from_frame(frame, receiver)
        if not 0 < receiver.nbytes <= MEMORY:
            continue
        receiver.allocate()
        from_frame(frame, receiver)
        for _, chunk in frames:
            receiver.feed(incoming(chunk))
            if receiver.complete:
                break
