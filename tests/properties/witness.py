"""Passes messages to a shard, checks what must hold for each, and can replay them to another shard."""

import itertools
import re

import pytest

from psserver.core.shard import Shard
from pswire.messages import Status
from tests.shard_state import run_step, state_of


class Witness:
    """A shard, and all messages it got."""

    def __init__(self, lease, **options):
        self._options = {"lease": lease, **options}
        self._tickets = itertools.count(1)
        self._history = []
        self.shard = Shard(**self._options)

    def step(self, message, now):
        """The answers by ticket, and this message's ticket; `check` must not refuse it."""
        before = state_of(self.shard)
        self.shard.check(message)
        assert state_of(self.shard) == before, "a check has changed something"
        return self._step(message, now)

    def _step(self, message, now):
        ticket = next(self._tickets)
        replies = run_step(self.shard, ticket, message, now)
        self._history.append((ticket, message, now, state_of(replies)))
        return {reply.ticket: reply.answer for reply in replies}, ticket

    def status(self, now):
        """The shard's status; replayed as well, since the meter looks at the clock by it."""
        (status,) = self._step(Status(), now)[0].values()
        return status

    def refused(self, message, now, error, *, by_check=True):
        """The shard must refuse the message, as `check` does, and not change in any bit.

        Without `by_check` the elements are wrong: `check`, which looks at none, must not refuse it.
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

    def check_replay(self):
        """Another shard that gets the same messages must answer the same, and be the same, in every bit."""
        again = Shard(**self._options)
        for ticket, message, now, replies in self._history:
            assert state_of(run_step(again, ticket, message, now)) == replies
        assert state_of(again) == state_of(self.shard)
