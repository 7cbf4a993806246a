"""Stands between a test and a shard: passes messages on, watches what must hold for each, can have them said again."""

import itertools
import re
from typing import Any

import pytest

from psserver.core.shard import Shard
from pswire.errors import ParamServerError
from pswire.messages import Answer, Message, Status, StatusReport
from tests.shard_state import run_step, state_of


class Witness:
    """A shard, and everything that was said to it."""

    def __init__(self, lease: float, **options: Any) -> None:
        self._options = {"lease": lease, **options}
        self._tickets = itertools.count(1)
        self._history: list[tuple[int, Message, float, object]] = []
        self.shard = Shard(**self._options)

    def tell(self, message: Message, now: float) -> tuple[dict[int, Answer | ParamServerError], int]:
        """The answers that the shard gives, by ticket, and this message's ticket; `check` must have no objection."""
        before = state_of(self.shard)
        self.shard.check(message)
        assert state_of(self.shard) == before, "a check has changed something"
        ticket = next(self._tickets)
        replies = run_step(self.shard, ticket, message, now)
        self._history.append((ticket, message, now, state_of(replies)))
        return {reply.ticket: reply.answer for reply in replies}, ticket

    def status(self, now: float) -> StatusReport:
        """What the shard says of itself; said again as well, since the meter looks at the clock by it."""
        ticket = next(self._tickets)
        replies = run_step(self.shard, ticket, Status(), now)
        self._history.append((ticket, Status(), now, state_of(replies)))
        (reply,) = replies
        assert isinstance(reply.answer, StatusReport)
        return reply.answer

    def refused(self, message: Message, now: float, error: type[ParamServerError], *, by_check: bool = True) -> None:
        """The shard must refuse the message with this error, as `check` does, and stay what it is in every bit.

        Without `by_check` the elements are wrong, and `check`, which looks at none, must have no objection.
        """
        before = state_of(self.shard)
        with pytest.raises(error) as refusal:
            run_step(self.shard, next(self._tickets), message, now)
        if not by_check:
            self.shard.check(message)
        else:
            with pytest.raises(error, match=f"^{re.escape(str(refusal.value))}$"):
                self.shard.check(message)
        assert state_of(self.shard) == before, "refused, but something has changed"

    def said_again(self) -> Shard:
        """Another shard that was told the same, and must have answered the same in every bit."""
        again = Shard(**self._options)
        for ticket, message, now, replies in self._history:
            assert state_of(run_step(again, ticket, message, now)) == replies
        return again
