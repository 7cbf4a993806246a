"""The parts of one step with each tensor transport, one after the other in one process, without gRPC.

The functions and arrays are those of a real step; shared memory is mapped twice. A real step additionally has gRPC and
handovers between threads, and overlaps some of the parts.
"""

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from _push_pull import arrays, declaration

from psserver.core.shard import Shard
from psserver.rpc.transfer_memory import AttachedSegments, ReusedArrays, SharedMemory
from psserver.runtime.executor import Executor
from pswire.codec import from_frame, to_frame
from pswire.messages import Gradient, Join, Push, Register, Sender
from pswire.optimizers import numba_compiler
from pswire.tensors.frame import incoming
from pswire.tensors.shared_memory import Region, SharedReceiver, bytes_needed
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport.shared_memory import AnswerReceiver, Segment, SegmentPool, fetch_segment

STEPS = 30
WARM_UP = 5

SEND = "worker: message to frames"
TAKE = "server: frames to message"
LOOK = "server: look for NaN and infinity"
STEP = "server: update, and copy of the fresh weights"
ANSWER = "server: answer to frames"
USE = "worker: frames to answer"
PARTS = (SEND, TAKE, LOOK, STEP, ANSWER, USE)


def parts(tensor_transport: str, *, numba: bool) -> dict[str, float]:
    """Milliseconds of each of `PARTS`, medians."""
    numba_compiler.USE_NUMBA = numba
    seen = asyncio.run(_Walk(tensor_transport).run())
    return {part: statistics.median(seen[part][WARM_UP:]) for part in PARTS}


class _Walk:
    """Steps of one worker on one shard, timing each part."""

    def __init__(self, tensor_transport: str) -> None:
        self._shared = tensor_transport == "shared memory"
        self._shard = Shard()
        self._entrance = Executor(self._shard, time.monotonic)
        self._gradients = arrays(1.0, 1)
        self._memory = SharedMemory(1 << 30)
        self._attached = AttachedSegments(self._memory, "worker")
        self._pool = SegmentPool(self._fetch)
        self._seen: dict[str, list[float]] = defaultdict(list)

    async def run(self) -> dict[str, list[float]]:
        if self._shared:
            nbytes = bytes_needed([one.nbytes for one in self._gradients.values()])
            self._segment, self._answers = self._fetch(0, nbytes), self._fetch(1, nbytes)
            self._attached.settle()
        joined = await self._entrance.step(Join(worker="worker"))
        sender = Sender("worker", joined.incarnation)
        declarations = [declaration(name, value) for name, value in arrays(0.1, 0).items()]
        await self._entrance.step(Register(sender=sender, declarations=tuple(declarations)))
        for sequence in range(1, WARM_UP + STEPS + 1):
            gradients = [Gradient(name, sequence - 1, array) for name, array in self._gradients.items()]
            await self._one(
                Push(
                    sender=sender, sequence=sequence, gradients=tuple(gradients), loss=None, pull=tuple(self._gradients)
                )
            )
        await self._entrance.shutdown()
        self._attached.close()
        self._memory.close()
        return self._seen

    def _fetch(self, number: int, nbytes: int) -> Segment:
        """A segment that is mapped twice, as by a server and a worker."""
        reply = self._attached.attach(pb.AttachRequest(segment=number, nbytes=nbytes))
        return fetch_segment(reply, number, nbytes)

    async def _one(self, push: Push) -> None:
        with self._clock(SEND):
            out = Region(0, self._segment.memory) if self._shared else StreamSender()
            header = to_frame(push, out)
            if self._shared:
                region = header.answer_region
                region.segment, region.offset, region.nbytes = 1, 0, self._answers.nbytes
            sent = [header.SerializeToString()] if self._shared else list(out.frames(header))
        with self._clock(TAKE):
            message = self._taken(sent, StreamReceiver(None, SharedReceiver(self._attached.memories)))
        with self._clock(LOOK):
            self._shard.inspect(message)
        with self._clock(STEP):
            region = self._attached.region(header.answer_region) if self._shared else None
            answer = await self._entrance.step(message, None, region or ReusedArrays(message))
        self._seen[STEP][-1] -= self._seen[LOOK][-1]  # inspected once more
        with self._clock(ANSWER):
            back = StreamSender(region)
            sent = list(back.frames(to_frame(answer, back)))
        with self._clock(USE):
            values = AnswerReceiver([self._answers] if self._shared else [], self._pool)
            self._taken(sent, StreamReceiver(None, values))

    def _taken(self, sent: list[bytes], receiver: StreamReceiver):
        first = incoming(sent[0])
        message = from_frame(first, receiver)
        if receiver.nbytes:
            receiver.allocate()
            message = from_frame(first, receiver)
            for data in sent[1:]:
                receiver.feed(incoming(data))
        return message

    @contextmanager
    def _clock(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seen[part].append((time.perf_counter() - began) * 1e3)
