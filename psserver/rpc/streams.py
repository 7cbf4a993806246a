"""Open Transfers: how many a member may have, and their end with its membership.

A stream belongs to the member that opens it, and stays open between its calls, while the worker computes. It ends with
the membership of the worker. As every call, it ends with the token that opened it too (`psserver.rpc.access`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pswire.errors import ParamServerError, Unavailable
from pswire.messages import Sender

#: Streams of one member at the same time; a worker has one for each concurrent call, of which it makes two or three.
STREAMS_OF_A_MEMBER = 24

_Frame = TypeVar("_Frame")


class Stream:
    """One open Transfer, served by the task that made it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._resting = False
        self._reason: ParamServerError | None = None

    async def next_call(self, receiving: Coroutine[Any, Any, _Frame]) -> _Frame:
        """What `receiving` returns, the next call: between its calls a worker computes, for any time.

        Raises the error with which the stream was ended.
        """
        if self._reason is not None:
            receiving.close()
            raise self._reason
        self._resting = True
        try:
            return await receiving
        except asyncio.CancelledError:
            if self._reason is not None:
                raise self._reason from None
            raise
        finally:
            self._resting = False

    def end(self, reason: ParamServerError) -> None:
        """End it with this error: at once, or after the call in progress."""
        if self._reason is None:
            self._reason = reason
            if self._resting:
                self._task.cancel()


class Streams:
    """All open Transfers, by their members."""

    def __init__(self) -> None:
        self._members: dict[Sender, dict[Stream, None]] = {}
        self._closing: ParamServerError | None = None

    @contextmanager
    def open(self, member: Sender) -> Iterator[Stream]:
        """A stream of the current task within the block. Raises `Unavailable` if its member has too many."""
        theirs = self._members.setdefault(member, {})
        if len(theirs) >= STREAMS_OF_A_MEMBER:
            raise Unavailable(
                f"worker {member.worker!r} has {len(theirs)} streams open, which is the limit: close some"
            )
        stream = Stream()
        if self._closing is not None:
            stream.end(self._closing)
        theirs[stream] = None
        try:
            yield stream
        finally:
            del theirs[stream]
            if not theirs:
                del self._members[member]

    def close_refused(self, check: Callable[[Sender], object]) -> None:
        """End the streams of workers that `check` raises an error for."""
        for member, streams in self._members.items():
            try:
                check(member)
            except ParamServerError as reason:
                for stream in streams:
                    stream.end(reason)

    def close(self, reason: ParamServerError) -> None:
        """End all streams between two calls; others, and new ones, end after their call."""
        self._closing = reason
        for streams in self._members.values():
            for stream in streams:
                stream.end(reason)
