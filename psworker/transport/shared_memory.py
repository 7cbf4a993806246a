"""A worker's end of the lane through shared memory: the segments of one stream, and the arrays that lie in them.

A segment is one call's at a time: the worker writes gradients into it, and the server puts values there, in the same
place where it can. The values are used where they lie, and the segment is free again when nobody has one of them any
more. So nothing is ever written that somebody may read. What fails ends the stream, and its segments are given up with
it: a server that is late may still write into them. May import pswire and numpy.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pswire.errors import Malformed
from pswire.tensors.segments import BEGIN, NotShared, Segment
from pswire.tensors.shared_memory import aligned, array_at
from pswire.tensors.values import DTYPES, Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

logger = logging.getLogger(__name__)

#: Bytes of the smallest segment.
SMALLEST = 64 << 10

#: Segments that a stream may have: two that take turns, with the weights in use and the next, some for rows that are
#: looked up, and some that a program keeps old weights in. When all are taken, tensors travel in frames.
MOST = 16

#: A value of fewer bytes is copied out, for whoever keeps it would keep a whole segment.
KEPT = 64 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A segment that the server has mapped, under its number."""

    number: int
    segment: Segment


class Segments:
    """The shared memory of one stream. One thread at a time; arrays may be dropped in any.

    Args:
        attach: offers a segment to the server.

    Attributes:
        count: how many there are.
        refused: why there are no more to be had, if it is so.
    """

    def __init__(self, attach: Callable[[pb.AttachRequest], pb.AttachReply]) -> None:
        self._attach = attach
        self._returned: deque[Block] = deque()  # by any thread, also in the midst of what is done here
        self._free: list[Block] = []
        self.count = 0
        self.refused = ""

    def take(self, nbytes: int) -> Block | None:
        """A segment of `nbytes` at least, for one call; None: there is no more."""
        while self._returned:
            self._free.append(self._returned.popleft())
        large = _rounded(nbytes)
        for index, block in enumerate(self._free):
            if large <= block.segment.nbytes <= 4 * large:
                return self._free.pop(index)
        if self.refused:
            return None
        if self.count < MOST:
            return self._new(self.count, large)
        if self._free:  # of another size than what is wanted now
            return self._new(self._free.pop(0).number, large)
        return None

    @property
    def give_back(self) -> Callable[[Block], None]:
        """Takes a segment that is free for another call. Keeps no stream alive: the memory of one that ended goes."""
        return partial(_give_back, weakref.ref(self))

    def _new(self, number: int, nbytes: int) -> Block | None:
        try:
            segment = Segment.create(nbytes - BEGIN)
        except NotShared as error:
            self.refused = str(error)
            return None
        try:
            reply = self._attach(
                pb.AttachRequest(segment=number, name=segment.name, nbytes=segment.nbytes, token=segment.token)
            )
        finally:
            segment.unlink()  # both have it now, or nobody needs it
        if not reply.attached:
            self.refused = reply.reason or "the server gives no reason"
            return None
        self.count = max(self.count, number + 1)
        return Block(number, segment)


def _give_back(segments: weakref.ref[Segments], block: Block) -> None:
    alive = segments()
    if alive is not None:
        alive._returned.append(block)


def _rounded(nbytes: int) -> int:
    """A little more, so that calls of nearly the same size find each other's segments: an eighth, 16 MB at most."""
    nbytes = max(SMALLEST, aligned(nbytes) + BEGIN)
    step = 1 << min(nbytes.bit_length() - 4, 24)
    return -(-nbytes // step) * step


class Lent:
    """A `pswire.tensors.transport.TensorReceiver` for values that the server has put into the blocks of one call.

    Args:
        blocks: which the server was lent.
        free: takes each of them when nobody has a value in it any more.
    """

    def __init__(self, blocks: Sequence[Block], free: Callable[[Block], None]) -> None:
        self._blocks = {block.number: block for block in blocks}
        self._free = free
        self._roots: dict[int, Array] = {}

    def get(self, tensor: pb.Tensor, spec: TensorSpec, *, own: bool = False) -> Array:
        """A read-only view of a block, or a copy of what is small."""
        number, offset = tensor.shared.segment, tensor.shared.offset
        block = self._blocks.get(number)
        if block is None:
            raise Malformed(f"variable {spec}: it is said to be in segment {number}, which is not this call's")
        if own or spec.nbytes < KEPT:
            array = array_at(block.segment.memory, offset, spec).copy()
        else:
            array_at(block.segment.memory, offset, spec)  # checks
            array = self._root(block)[offset : offset + spec.nbytes].view(DTYPES[spec.dtype]).reshape(spec.shape)
        array.flags.writeable = False
        return array

    def close(self) -> None:
        """No value is taken from now on: blocks without one are free at once."""
        for number, block in self._blocks.items():
            if number not in self._roots:
                self._free(block)
        self._roots.clear()

    def _root(self, block: Block) -> Array:
        """All of a block as one array, which lives as long as one of its views (numpy's `base`)."""
        root = self._roots.get(block.number)
        if root is None:
            root = self._roots[block.number] = np.frombuffer(block.segment.memory, np.uint8)
            weakref.finalize(root, partial(self._free, block)).atexit = False
        return root
