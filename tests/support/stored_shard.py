"""A shard with checkpoints in memory: it writes every cut, can lose its state, and goes back as a server does."""

import itertools
from dataclasses import dataclass

from psserver.core.cuts.shard_cut import Late
from psserver.core.state import VariableArrays
from psserver.core.variables.array_tasks import run
from pswire import messages as ms
from pswire.errors import InvalidMessage, Unavailable, WrongShard
from pswire.messages import ShardState
from tests.support.shard_state import finish_copies

_identities = itertools.count(1)


@dataclass
class Checkpoint:
    """A cut of one shard: its snapshot, and the late changes, which are made again."""

    state: ShardState
    arrays: dict[str, VariableArrays]
    late: list[Late]

    def restored(self, new, now=0.0):
        """A new shard from this cut."""
        copies = {}
        for name, one in self.arrays.items():
            copies[name] = VariableArrays(one.value.copy(), {slot: array.copy() for slot, array in one.slots.items()})
        new.restore(self.state, copies, now)
        for number, message in enumerate(self.late):
            run(new.step(-1 - number, message, now).tasks)
        return new


class StoredShard:
    """`checkpoints` has all complete cuts by number. `refuses`: the shard was started with --on-lost-state fail."""

    def __init__(self, new):
        self._new, self.shard = new, new()
        self.checkpoints, self.began, self.refuses = {}, 0, False

    def step(self, ticket, message, now):
        """The replies, when all tasks have run."""
        if isinstance(message, ms.Restore):
            return self._go_back(ticket, message, now)
        result = self.shard.step(ticket, message, now)
        run(result.tasks)
        self._write(result.began_cut)
        return result.replies

    def lose(self, now=0.0):
        """As a server that was killed, and began again from its newest checkpoint; the calls that this ended."""
        waiting, timeline = self._ended("the server was killed"), self.shard.timeline
        if self.checkpoints:
            self.shard = self.checkpoints[max(self.checkpoints)].restored(self._new(), now)
        else:
            self.shard = self._new(identity=next(_identities))
        self.shard.begin_from(timeline, now, lost=True)
        return waiting

    def _write(self, began):
        cut = self.shard.cuts.current
        if began and cut is not None:
            cut.writing = True
        if cut is None or not cut.writing or not cut.complete:
            return
        finish_copies(self.shard)
        arrays = {name: copy.arrays for name, copy in cut.copies.items()}
        self.checkpoints[cut.number] = Checkpoint(cut.state, arrays, list(cut.late))
        cut.writing = False
        self.shard.cuts.end_if_idle()

    def _go_back(self, ticket, message, now):
        replies = []
        if message.timeline > self.shard.timeline:
            if self.refuses:
                raise WrongShard("this server was started with --on-lost-state fail")
            if message.cut not in self.checkpoints:
                raise InvalidMessage(f"no checkpoint {message.cut}")
            replies = self._ended(f"went back to {message.cut}")
            self.shard = self.checkpoints[message.cut].restored(self._new(), now)
            self.shard.begin_from(message.timeline, now, went_back=True)
            self.began = message.cut
            self.checkpoints = {number: one for number, one in self.checkpoints.items() if number <= message.cut}
        shard = self.shard
        answer = ms.Restored(
            timeline=shard.timeline, cut=self.began, lost=shard.lost, cuts=tuple(sorted(self.checkpoints))
        )
        return [*replies, ms.Reply(ticket, answer)]

    def _ended(self, why):
        return [ms.Reply(ticket, Unavailable(why)) for ticket, _ in self.shard.waiting()]
