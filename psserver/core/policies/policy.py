"""What a consistency policy sees, and what it may say. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from psserver.core.members.membership import Membership
from pswire.messages import ChangeId, UpdateGroup


@dataclass(frozen=True, slots=True)
class Waiting:
    """A push that has not been applied (`applied` False), or a wish for values: a pull, or that of a settled push.

    `staleness` is that of now: how many changes the weights of the push have seen since they were served. `group` is
    what shard 0 has decided about it, on the other shards.
    """

    ticket: int
    worker: str
    applied: bool
    staleness: int = 0
    group: UpdateGroup | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The shard as a policy may know it: its step, the updates that it has made, and its members. It changes neither.

    Whoever waits with a push is in the race. `settled` says whether a message will not be carried out here any more: it
    was already, its worker has given it up, or the worker's lease has ended.
    """

    global_step: int
    members: Membership
    settled: Callable[[ChangeId], bool] = lambda delivery: True

    @property
    def steps(self) -> dict[str, int]:
        """How many pushes of each live worker were applied."""
        return {member.name: member.steps for member in self.members if member.state == "live"}


@dataclass(frozen=True, slots=True)
class Apply:
    """Make one update: of the mean of these pushes, with the learning rate times `scale`, which is 1 at most.

    If its result is not finite, the pushes are refused, and the policy is asked anew before its next verdict.
    """

    tickets: tuple[int, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Serve:
    """Answer it, with the values that there are when all verdicts have been carried out."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Do not apply this push; tell its worker why."""

    ticket: int
    reason: str


Verdict: TypeAlias = Apply | Serve | Drop


class Policy(Protocol):
    """A consistency policy. Pure: it keeps nothing between calls and does not know the time."""

    def decide(self, waiting: Sequence[Waiting], view: View) -> list[Verdict]:
        """What may happen now to those who wait, in order of arrival; empty: all go on waiting.

        It is asked again after its verdicts have been carried out, until it has none, so it may leave some for then.
        """
        ...

    def explain(self, one: Waiting, waiting: Sequence[Waiting], view: View) -> str:
        """For whom and what `one`, a push that `decide` has left among those `waiting`, is held; one sentence."""
        ...


def listed(names: Iterable[str], most: int = 4) -> str:
    """The names as a sentence has them, and how many there are beyond `most`."""
    every = list(names)
    shown = every[:most] if len(every) > most + 1 else every
    if len(shown) < len(every):
        shown.append(f"{len(every) - len(shown)} others")
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]])) or "nobody"
