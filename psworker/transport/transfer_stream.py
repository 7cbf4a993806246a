"""A Transfer stream that stays open for consecutive calls, which halves the cost of a call.

Handles bytes and segments, not messages. May import pswire and grpc.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pswire.errors import Malformed
from pswire.tensors.frames import incoming
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport.shared_memory import SegmentPool


class TransferStream:
    """An open stream to one server. One call at a time.

    Args:
        open_stream: opens it for an iterator of request frames; returns the answers' frames.
        share: whether to offer shared memory.

    Attributes:
        answers: the frames of all answers.
        pool: its segments; None without shared memory.
    """

    def __init__(self, open_stream: Callable[[Iterator[bytes]], Any], *, share: bool) -> None:
        self._requests: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        self._helper: ThreadPoolExecutor | None = None
        self.answers = open_stream(itertools.chain.from_iterable(iter(self._requests.get, None)))
        self.pool = SegmentPool(self._attach) if share else None

    def probe(self) -> None:
        """Finds out whether the server accepts shared memory."""
        segment = None if self.pool is None else self.pool.take(1)
        if self.pool is not None and segment is not None:
            self.pool.give_back(segment)

    def send(self, frames: Iterator[bytes]) -> None:
        """Passes a request to gRPC's thread."""
        self._requests.put(frames)

    @property
    def helper(self) -> ThreadPoolExecutor:
        """A thread of this stream's own, which ends with it."""
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, thread_name_prefix="psworker-stream")
        return self._helper

    @property
    def alive(self) -> bool:
        """Whether the next call may use it, as far as known: the server may have ended since the last call."""
        return bool(self.answers.is_active())

    def cancel(self) -> None:
        """Ends waits for an answer with an error; frees the server, and gRPC's thread."""
        self._requests.put(None)
        self.answers.cancel()

    def end(self) -> None:
        """Frees the threads, the server, and segments without values."""
        self.cancel()
        # Breaks reference cycles: the pool knows this stream, and gRPC's error is `answers` itself, whose traceback has
        # this stream and the call.
        self.pool = self.answers.__traceback__ = None
        if self._helper is not None:
            self._helper.shutdown(wait=False)

    def _attach(self, request: pb.AttachRequest) -> pb.AttachReply:
        self.send(iter((pb.Frame(attach=request).SerializeToString(),)))
        frame = next(self.answers, None)
        header = None if frame is None else incoming(frame).header
        if header is None or header.WhichOneof("piece") != "attached":
            raise Malformed("the server did not answer the offer of shared memory")
        return header.attached
