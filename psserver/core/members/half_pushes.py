"""Half-applied pushes: pushes that some shards have applied and others have not.

Workers report those that they abandoned, and a shard counts parts that arrived too late. Those left by the death of a
worker are found by comparing the last pushes of all shards (`psserver status`). May import the member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice

from psserver.core.members.member import Member
from pswire.messages import LastPush

#: Earlier incarnations whose last push is remembered.
MAX_EARLIER_INCARNATIONS = 1000


class HalfPushes:
    """Counts and last pushes of current and earlier incarnations of `members`."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._counted = 0  # reports of earlier incarnations, and late parts
        self._last_pushes: deque[LastPush] = deque(maxlen=MAX_EARLIER_INCARNATIONS)  # of earlier lives

    @property
    def count(self) -> int:
        """The number of half-applied pushes known to this shard."""
        return self._counted + sum(member.half_pushes for member in self._members.values())

    def last_pushes(self, most: int) -> tuple[LastPush, ...]:
        """The last push of each incarnation that other shards have a part of; at most the newest 1,000."""
        now = [member.last_push for member in self._members.values() if member.last_push is not None]
        return (*islice(self._last_pushes, max(0, len(self._last_pushes) + len(now) - most), None), *now[-most:])

    def report(self, member: Member, count: int) -> None:
        """Record the report of a worker's current incarnation; reports may arrive out of order."""
        member.half_pushes = max(member.half_pushes, count)

    def settle(self, member: Member, sequence: int) -> bool:
        """Note that the worker knows the outcome of its messages up to this one; False if that was known."""
        new = sequence > (member.last_push.sequence if member.last_push else 0)
        if new:
            member.last_push = LastPush(member.name, member.incarnation, sequence, ())
        return new

    def late_part(self, member: Member, sequence: int) -> None:
        """Count the part of a push that arrived too late to be applied here."""
        self._counted += self.settle(member, sequence)

    def end_incarnation(self, member: Member) -> None:
        """Keep the counts of a member whose next incarnation begins."""
        self._counted += member.half_pushes
        if member.last_push is not None:
            self._last_pushes.append(member.last_push)
