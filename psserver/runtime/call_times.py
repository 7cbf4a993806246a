"""When the parts of a call that is traced have ended, noted by the executor. Nothing is noted for other calls."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from time import time_ns

from pswire.messages import Reply


class CallTimes:
    """Times in nanoseconds since 1970, 0 as long as a part has not ended.

    Attributes:
        began: the call was there.
        decoded: its message was.
        stepped: the shard had stepped it.
        decided: the step that answers it was done: the same one, or a later one if the policy has held it.
        answered: its array tasks had been run, and its change was written to the journal.
    """

    __slots__ = ("answered", "began", "decided", "decoded", "stepped")

    def __init__(self) -> None:
        self.began = time_ns()
        self.decoded = self.stepped = self.decided = self.answered = 0

    def note_step(self, ticket: int, replies: Iterable[Reply]) -> None:
        """Note the step of its message, which may answer it."""
        self.stepped = time_ns()
        if any(reply.ticket == ticket for reply in replies):
            self.decided = self.stepped

    def note_decision(self) -> None:
        """Note that a later step has answered it."""
        self.decided = self.decided or time_ns()


#: The times of the call that this task serves; None: it is not traced.
call_times: ContextVar[CallTimes | None] = ContextVar("pscall", default=None)
