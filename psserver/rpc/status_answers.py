"""Answers to Status: however many callers ask, and however large the job is, they take a small part of the event loop.

Anyone may ask for a status, and a large one takes milliseconds. So all callers that wait get one answer, which is made
after they have asked, and the next one is made only after a pause in proportion.
"""

import asyncio
from collections.abc import Awaitable, Callable

from pswire.codec import encode
from pswire.errors import Unavailable
from pswire.limits import MAX_MESSAGE
from pswire.messages import Answer, Status
from pswire.tensors.transport import InlineSender
from pswire.v1 import paramserver_pb2 as pb

#: Largest encoded answer in bytes: gRPC's limit less its overhead.
MAX_ANSWER = MAX_MESSAGE - (64 << 10)

#: The time between two answers, as a multiple of the last one's duration, which may include waiting; its least and
#: greatest value in seconds.
PAUSE, LEAST_PAUSE, MOST_PAUSE = 10.0, 0.02, 1.0

#: Different requests that wait at a time.
MAX_WAITING = 64


class StatusAnswers:
    """Encoded answers to Status, which `ask` makes. All methods are called in the event loop.

    `aside` calls a function with its arguments in a thread, which gives way to the event loop.
    """

    def __init__(
        self,
        ask: Callable[[Status], Awaitable[Answer]],
        aside: Callable[[Callable[[Answer], bytes], Answer], Awaitable[bytes]],
    ) -> None:
        self._ask, self._aside = ask, aside
        self._turn = asyncio.Lock()
        self._next = 0.0  # the earliest time of the next answer
        self._waiting: dict[Status, asyncio.Task[bytes]] = {}

    async def answer(self, message: Status) -> bytes:
        """The answer, shared with all who asked the same since the last one was begun; raises what `ask` does."""
        task = self._waiting.get(message)
        if task is None:
            if len(self._waiting) >= MAX_WAITING:
                raise Unavailable(f"{len(self._waiting)} different parts of the status are being asked for: try again")
            task = self._waiting[message] = asyncio.ensure_future(self._made(message))
        return await asyncio.shield(task)

    async def _made(self, message: Status) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._next - loop.time())
            del self._waiting[message]  # who asks from now on gets a later one
            began = loop.time()
            try:
                report = await self._ask(message)
                return await self._aside(encoded, report)  # what is encoded never changes
            finally:
                took = loop.time() - began
                self._next = loop.time() + min(MOST_PAUSE, max(LEAST_PAUSE, PAUSE * took))


def encoded(report: Answer) -> bytes:
    """The bytes of a report; lists are cut to halves, the largest first, until it is a message that gRPC carries."""
    proto = encode(report, InlineSender())
    assert isinstance(proto, pb.StatusReply)
    while proto.ByteSize() > MAX_ANSWER:
        lists = [getattr(proto, field.name) for field in proto.DESCRIPTOR.fields if field.is_repeated]
        largest = max(lists, key=lambda entries: sum([entry.ByteSize() for entry in entries]))
        if largest is proto.variables:
            del largest[len(largest) // 2 :]  # pages begin with the first ones
        else:
            del largest[: (len(largest) + 1) // 2]  # the oldest
    return proto.SerializeToString()
