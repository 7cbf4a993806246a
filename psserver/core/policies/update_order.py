"""The order of changes over all shards of a job, decided by shard 0 if a policy limits staleness.

Shard 0 numbers each change (an update or an assign, on whichever shards), and remembers which variables with a part on
another shard it changed, and which changes may not have reached the other shards. So it knows the staleness that a
gradient will have where it is applied, and other shards know what to apply before it.
"""

from collections import deque
from collections.abc import Iterable
from itertools import takewhile

from pswire.errors import InvalidMessage
from pswire.messages import ChangeId, Frontier, OrderState, RemoteWeights, Sender, VariableChanges

#: Number of changes remembered for each variable: far more than a useful gradient has missed.
MAX_REMEMBERED_CHANGES = 10_000

#: Changes that may not have reached other shards: the oldest are of workers that are gone. Every answer names them all.
MAX_UNDELIVERED = 4000


class UpdateOrder:
    """The changes that shard 0 has decided; `count` is their number."""

    def __init__(self) -> None:
        self.count = 0
        self._changes: dict[str, deque[int]] = {}
        self._undelivered: dict[str, ChangeId] = {}

    def state(self) -> OrderState:
        """The changes that are remembered."""
        changes = [VariableChanges(name, tuple(numbers)) for name, numbers in self._changes.items()]
        return OrderState(self.count, tuple(changes), tuple(self._undelivered.values()))

    def restore(self, state: OrderState) -> None:
        """Continue from a `state`."""
        self.count = state.count
        self._changes = {one.name: deque(one.numbers, MAX_REMEMBERED_CHANGES) for one in state.changes}
        self._undelivered = {change.sender.worker: change for change in state.undelivered}

    def check(self, remote: Iterable[RemoteWeights]) -> None:
        """Raise `InvalidMessage` for weights that are newer than all decided changes."""
        for one in remote:
            if one.served_at > self.count:
                raise InvalidMessage(
                    f"gradient for {one.name!r} of weights served after {one.served_at} changes, but shard 0 has "
                    f"decided {self.count}: the server has lost state since then; register again"
                )

    def staleness(self, remote: Iterable[RemoteWeights]) -> int:
        """The most changes that weights on other shards have had since they were served."""
        return max([self._missed(one) for one in remote], default=0)

    def _missed(self, one: RemoteWeights) -> int:
        changes = self._changes.get(one.name, ())
        missed = sum(1 for _ in takewhile(lambda number: number > one.served_at, reversed(changes)))
        return missed if missed < MAX_REMEMBERED_CHANGES else self.count - one.served_at

    def frontier(self) -> Frontier:
        """The present frontier."""
        return Frontier(self.count, tuple(self._undelivered.values()))

    def add(self, messages: Iterable[ChangeId], names: Iterable[str]) -> Frontier:
        """Decide one more change, made by these messages, of the remote variables `names`.

        Returns its frontier: this change counts as decided, and the undelivered are those before it.
        """
        before = tuple(self._undelivered.values())
        self.count += 1
        for name in names:
            changes = self._changes.setdefault(name, deque(maxlen=MAX_REMEMBERED_CHANGES))
            if not changes or changes[-1] != self.count:
                changes.append(self.count)
        for message in messages:
            if message.shards:
                self._undelivered[message.sender.worker] = message
        while len(self._undelivered) > MAX_UNDELIVERED:
            del self._undelivered[next(iter(self._undelivered))]
        return Frontier(self.count, before)

    def forget(self, worker: str) -> None:
        """Note that a worker has been gone for so long that no message of it is under way."""
        self._undelivered.pop(worker, None)

    def settle(self, sender: Sender, sequence: int) -> None:
        """Note that all shards have answered the sender's messages before this one, or it has abandoned them."""
        change = self._undelivered.get(sender.worker)
        if change is not None and (change.sender != sender or change.sequence < sequence):
            del self._undelivered[sender.worker]
