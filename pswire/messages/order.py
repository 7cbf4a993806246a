"""Which changes of a job come before which: the order that shard 0 gives them, and that other shards follow.

Where a consistency policy looks at staleness, shard 0 numbers every change that it decides, on whichever shards it
is made. A message to another shard names the changes that must be made there before it (`after`). Part of
`pswire.messages`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pswire.messages.membership import Sender


@dataclass(frozen=True, slots=True)
class ChangeId:
    """A push or assign that shard 0 has decided: its sender, its sequence number, and the other shards with a part.

    To another shard `shards` is left out: the delivery is named there because it has a part there.
    """

    sender: Sender
    sequence: int
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far shard 0 has decided: so many changes, of which the `undelivered` may not have reached the other shards.

    Values that another shard serves after all undelivered changes have at least the first `decided` changes.
    """

    decided: int
    undelivered: tuple[ChangeId, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteWeights:
    """A variable with a part on a shard other than 0, and `Frontier.decided` of the weights of its gradient there."""

    name: str
    served_at: int


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Pushes of several workers that make one update, their mean; `number` counts the updates of shard 0."""

    number: int
    members: tuple[ChangeId, ...]
