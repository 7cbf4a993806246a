"""The order of changes: shard 0's decisions, and how other shards follow them.

Where a consistency policy looks at staleness, shard 0 numbers every change that it decides, on whichever shards it is
made. A message to another shard names the changes that must be made there before it (`after`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pswire.messages.membership import Sender


@dataclass(frozen=True, slots=True)
class ChangeId:
    """A push or assign that shard 0 has decided.

    `shards` are the other shards that have a part of it; empty in messages to one of those.
    """

    sender: Sender
    sequence: int
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Frontier:
    """The number of changes shard 0 has decided, and those that may not have reached the other shards.

    Values that another shard serves after all undelivered changes include at least the first `decided` changes.
    """

    decided: int
    undelivered: tuple[ChangeId, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteWeights:
    """A variable with a part on a shard other than 0, and `Frontier.decided` of its gradient's weights there."""

    name: str
    served_at: int


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Pushes of several workers that make one update, their mean; `number` counts the updates of shard 0."""

    number: int
    members: tuple[ChangeId, ...]
