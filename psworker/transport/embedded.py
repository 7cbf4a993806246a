"""Embedded transport: the shard in this process, the same state machine as in a server, without a network.

With `psworker.transport.embedded_checkpoints`, the only module outside psserver that imports it. Serves one program, or
several of its threads.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from psserver.core.options import ShardOptions
from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import run
from pswire.errors import ParamServerError, TimedOut
from pswire.messages import Answer, Compute, Cut, CutReport, Join, Push, Register, Request, Tick
from pswire.system.interrupts import deferred_signals, raise_deferred
from psworker.transport import Future

if TYPE_CHECKING:
    from psworker.transport.embedded_checkpoints import EmbeddedCheckpoints


class EmbeddedTransport:
    """One shard, stepped by the calling thread; with `checkpoints`, if given, from the first Join to `close`.

    `_changed` guards the shard and the answers, and is notified after each step. Leases do not expire, because all
    threads end with the process.
    """

    shards = 1

    def __init__(self, checkpoints: EmbeddedCheckpoints | None = None) -> None:
        self._shard = Shard(ShardOptions(lease=math.inf))
        self._checkpoints = checkpoints
        self._tickets = itertools.count(1)
        self._changed = threading.Condition()
        self._answers: dict[int, Answer | ParamServerError] = {}

    def call(self, shard: int, message: Request, timeout: float) -> Future[Answer]:
        """Step the shard at once; the future raises `TimedOut` if there is no answer within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            ticket = next(self._tickets)
            try:
                if self._checkpoints is None:
                    self._step(ticket, message)
                else:
                    self._step_with(self._checkpoints, ticket, message)
            except ParamServerError as error:
                self._answers[ticket] = error
        return Future(partial(self._result, ticket, type(message).__name__, deadline))

    def begin(self, shard: int, message: Request, seconds: float) -> None:
        """As `Transport.begin`: nothing travels."""

    def tensor_transport(self, shard: int) -> str:
        """Empty: there is no network."""
        return ""

    def close(self) -> None:
        """Writes a last checkpoint, if there are checkpoints; raises what a signal has deferred, as gRPC's does."""
        with deferred_signals:
            if self._checkpoints is not None:
                with self._changed:
                    self._checkpoints.close()

    def _result(self, ticket: int, what: str, deadline: float) -> Answer:
        with self._changed:
            while ticket not in self._answers:
                if time.monotonic() > deadline:
                    raise TimedOut(f"the embedded shard did not answer {what} in time: it waits for other threads")
                self._changed.wait(0.5)
                raise_deferred()
                self._step(0, self._shard.due(time.monotonic()))
            answer = self._answers.pop(ticket)
        if isinstance(answer, ParamServerError):
            raise answer
        return answer

    def _step_with(self, checkpoints: EmbeddedCheckpoints, ticket: int, message: Request) -> None:
        first = isinstance(message, Join) and not checkpoints.started
        if first:
            checkpoints.start(self._shard)
        elif isinstance(message, Register):
            checkpoints.check(message)
        checkpoints.before(message)
        try:
            self._step(ticket, message)
        except ParamServerError as error:
            raise checkpoints.explained(error) from None
        if first:
            checkpoints.joined()
        elif isinstance(message, Push) or (isinstance(message, Compute) and message.note):
            checkpoints.after_update()
        elif isinstance(message, Cut):
            report = self._answers[ticket]
            assert isinstance(report, CutReport)
            self._answers[ticket] = checkpoints.reported(message, report)

    def _step(self, ticket: int, message: Request | Tick) -> None:
        result = self._shard.step(ticket, message, time.monotonic())
        run(result.tasks)
        for reply in result.replies:
            self._answers[reply.ticket] = reply.answer
        self._changed.notify_all()
