"""The shard in this process: the same state machine as behind a server, without a network.

The one module outside psserver that imports it. Serves one program or several of its threads.
"""

from __future__ import annotations

import itertools
import math
import threading
import time

from psserver.core.shard import Shard
from pswire.errors import TimedOut
from pswire.messages import Answer, Request, Tick, owned


class EmbeddedTransport:
    """One shard, stepped by whoever calls.

    `_changed` guards the shard and the answers; who must wait for another thread's step waits on it. Leases do not
    end here: threads of one process die together.
    """

    shards = 1

    def __init__(self) -> None:
        self._shard = Shard(lease=math.inf)
        self._tickets = itertools.count(1)
        self._changed = threading.Condition()
        self._answers: dict[int, Answer] = {}

    def call(self, shard: int, message: Request, timeout: float) -> Answer:
        """The shard's answer, with copies of its values.

        Raises:
            TimedOut: none within `timeout` seconds.
            ParamServerError: whatever the shard raises.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            ticket = next(self._tickets)
            self._step(ticket, message)
            while ticket not in self._answers:
                if time.monotonic() > deadline:
                    raise TimedOut(
                        f"no answer to {type(message).__name__} within {timeout:g} s from the embedded shard"
                    )
                self._changed.wait(0.5)
                self._step(0, Tick())
            return self._answers.pop(ticket)

    def close(self) -> None:
        """Nothing to close."""

    def _step(self, ticket: int, message: Request | Tick) -> None:
        for reply in self._shard.step(ticket, message, time.monotonic()):
            self._answers[reply.ticket] = owned(reply.answer)
        self._changed.notify_all()
