"""Places in shared memory, of tensors and of the region of an answer; the memory is this process's own."""

from mmap import mmap

import numpy as np

from pswire.codec import from_frame
from pswire.tensors.frame import incoming
from pswire.tensors.shared_memory import Region, SharedReceiver
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from tests.fuzz.packets import unpack

COVERS = ["pswire.tensors.shared_memory"]
KINDS = {0: pb.Frame}

_MEMORIES = {number: np.frombuffer(mmap(-1, size), np.uint8) for number, size in enumerate((4096, 1 << 16))}


def run(data: bytes) -> None:
    for _, part in unpack(data)[:4]:
        frame = incoming(part)
        message = from_frame(frame, StreamReceiver(frame.data, SharedReceiver(_MEMORIES)))
        if frame.header.HasField("answer_region"):
            place = frame.header.answer_region
            memory = _MEMORIES.get(place.segment)
            if memory is None:
                continue
            region = Region(place.segment, memory, place.offset, place.nbytes)
            for size in (1, 24, 1000):
                array = region.take(TensorSpec("value", (size,)))
                if array is not None:
                    array[...] = 1.0
                    assert region.offset_of(array) is not None
                    StreamSender(region).put(array, pb.Tensor(name="value", dtype="float32"))
            assert region.offset_of(np.ones(3, np.float32)) is None
        del message
