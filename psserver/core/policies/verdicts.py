"""What a consistency policy sees, and what it may say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from psserver.core.membership import Member


@dataclass(frozen=True, slots=True)
class Waiting:
    """A push that has not been applied (`applied` False), or a wish for values: a pull, or that of an applied push."""

    ticket: int
    worker: str
    applied: bool
    staleness: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """The shard as a policy may know it: its step and its members, of which it may change nothing."""

    global_step: int
    members: Iterable[Member]

    @property
    def steps(self) -> dict[str, int]:
        """How many pushes of each live worker were applied."""
        return {member.name: member.steps for member in self.members if member.state == "live"}


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply this push."""

    ticket: int


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
        """What may happen now to those who wait, in order of arrival; empty: all go on waiting."""
        ...
