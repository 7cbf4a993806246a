"""Open Transfers: how many a member may have, and their end with its membership.

A stream stays open between its calls, while its worker computes. It belongs to a member; one of nobody, or of a member
that has left or was lost, ends within seconds.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc.aio

from pswire.errors import ParamServerError, TimedOut, Unavailable
from pswire.messages import Sender

#: Streams of one member at the same time; a worker has one for each concurrent call, of which it makes two or three.
STREAMS_OF_A_MEMBER = 24

#: Seconds within which a member must have called on a stream.
STRANGER_SECONDS = 5.0


class Stream:
    """One open Transfer, served by the task that made it.

    Attributes:
        member: whose calls it carries; None: nobody's, until a member has called.
        account: the name under which its bytes count (`psserver.rpc.admission`): of the member, or of the connection.
    """

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        task = asyncio.current_task()
        assert task is not None, "gRPC runs each call in a task of its own"
        self._context, self._task = context, task
        self._opened = asyncio.get_running_loop().time()
        self.member: Sender | None = None
        self.account: str = context.peer()
        self._resting = False
        self._reason: ParamServerError | None = None

    async def next_call(self) -> bytes:
        """The first frame of the next call: between its calls a worker computes, for any time. EOF at the end.

        Raises:
            TimedOut: no member has called in time.
            Unavailable: the stream was ended.
        """
        if self._reason is not None:
            raise self._reason
        self._resting = True
        try:
            if self.member is not None:
                return await self._read()
            async with asyncio.timeout_at(self._opened + STRANGER_SECONDS):
                return await self._read()
        except asyncio.CancelledError:
            if self._reason is not None:
                raise self._reason from None
            raise
        except TimeoutError:
            raise TimedOut(f"no worker has called on this stream within {STRANGER_SECONDS:g} s: it is closed") from None
        finally:
            self._resting = False

    async def _read(self) -> bytes:
        data: bytes = await self._context.read()
        return data

    def end(self, reason: ParamServerError) -> None:
        """End it with this error: at once, or after the call in progress."""
        if self._reason is None:
            self._reason = reason
            if self._resting:
                self._task.cancel()


class Streams:
    """All open Transfers."""

    def __init__(self) -> None:
        self._strangers: dict[Stream, None] = {}
        self._members: dict[Sender, dict[Stream, None]] = {}
        self._closing: ParamServerError | None = None

    @contextmanager
    def open(self, context: grpc.aio.ServicerContext) -> Iterator[Stream]:
        """A stream of the current task within the block."""
        stream = Stream(context)
        if self._closing is not None:
            stream.end(self._closing)
        self._strangers[stream] = None
        try:
            yield stream
        finally:
            self._strangers.pop(stream, None)
            if stream.member is not None:
                self._remove(stream, stream.member)

    def belongs_to(self, stream: Stream, member: Sender) -> None:
        """Note whose calls a stream carries. Raises `Unavailable` if the member has too many."""
        if stream.member == member:
            return
        theirs = self._members.setdefault(member, {})
        if len(theirs) >= STREAMS_OF_A_MEMBER:
            raise Unavailable(
                f"worker {member.worker!r} has {len(theirs)} streams open, which is the limit: close some"
            )
        self._strangers.pop(stream, None)
        if stream.member is not None:
            self._remove(stream, stream.member)
        theirs[stream] = None
        stream.member, stream.account = member, member.worker

    def _remove(self, stream: Stream, member: Sender) -> None:
        theirs = self._members[member]
        del theirs[stream]
        if not theirs:
            del self._members[member]

    def close_refused(self, check: Callable[[Sender], object]) -> None:
        """End the streams of workers that are no live members, with the error by which `check` says so."""
        for member, streams in self._members.items():
            try:
                check(member)
            except ParamServerError as reason:
                for stream in streams:
                    stream.end(reason)

    def close(self, reason: ParamServerError) -> None:
        """End all streams between two calls; others, and new ones, end after their call."""
        self._closing = reason
        for streams in (self._strangers, *self._members.values()):
            for stream in streams:
                stream.end(reason)
