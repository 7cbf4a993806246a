"""The interface of consistency policies: their view of the shard, and their decisions. Makes no decisions itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from psserver.core.members.membership import Membership
from pswire.messages import ChangeId, UpdateGroup


@dataclass(frozen=True, slots=True)
class CallView:
    """A pending call: a push to be settled (`applied` False), or a request for values (a pull, or a settled push).

    `staleness` is the current one: the number of changes that the weights of the push have missed. `group` is shard 0's
    decision about it, on the other shards.
    """

    ticket: int
    worker: str
    applied: bool
    staleness: int = 0
    group: UpdateGroup | None = None


@dataclass(frozen=True, slots=True)
class ShardView:
    """The read-only view that policies have of the shard. Every worker with a pending push is in training.

    `settled` tells whether a message will not be applied here any more: it was, its worker has abandoned it, or the
    worker's lease has expired.
    """

    global_step: int
    members: Membership
    settled: Callable[[ChangeId], bool] = lambda change: True


@dataclass(frozen=True, slots=True)
class Apply:
    """Make one update of the mean of these pushes, with the learning rate times `scale`, 1 at most.

    If its result is not finite, the pushes are refused, and the policy is asked again before its next decision.
    """

    tickets: tuple[int, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Serve:
    """Answer a call with the values as they are when all decisions have been carried out."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Do not apply this push; its worker gets the reason."""

    ticket: int
    reason: str


Decision: TypeAlias = Apply | Serve | Drop


class Policy(Protocol):
    """A consistency policy. Pure: it keeps no state between calls and has no clock."""

    def decide(self, calls: Sequence[CallView], shard: ShardView) -> list[Decision]:
        """Decide about pending calls, which are in order of arrival; none: all of them remain pending.

        It is asked again after its decisions have been carried out, until it makes none, so it may postpone some.
        """
        ...

    def explain(self, call: CallView, calls: Sequence[CallView], shard: ShardView) -> str:
        """One sentence: for which workers and why `call`, a push that `decide` has left pending, is held."""
        ...


def listed(names: Iterable[str], most: int = 4) -> str:
    """Joins names for a sentence: at most `most`, and the number of the others."""
    every = list(names)
    shown = every[:most] if len(every) > most + 1 else every
    if len(shown) < len(every):
        shown.append(f"{len(every) - len(shown)} others")
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]])) or "none"
