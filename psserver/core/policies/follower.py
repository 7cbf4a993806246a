"""Follower policy: the other shards apply what shard 0 has decided for all, and nothing else.

A worker asks shard 0 first, and brings the decision along with its part. What shard 0 has dropped does not come. That
updates are made in shard 0's order is not decided here: a push is only seen when all that come before it are settled
(`pswire.messages.order`).
"""

from __future__ import annotations

from collections.abc import Sequence

from psserver.core.policies.policy import Apply, Serve, Verdict, View, Waiting, listed
from pswire.messages import UpdateGroup


class Follower:
    """Pushes of one group make one update when all of them have come; others are applied at once.

    The group goes on without a member whose lease has ended here, or who has given its part up: that part is settled
    (`View.settled`), and is refused when it comes after all.
    """

    def decide(self, waiting: Sequence[Waiting], view: View) -> list[Verdict]:
        """Makes the updates that are complete, and serves who wishes for values."""
        verdicts: list[Verdict] = []
        groups: dict[int, list[Waiting]] = {}
        for one in waiting:
            if one.applied:
                verdicts.append(Serve(one.ticket))
            elif one.group is None:
                verdicts.append(Apply((one.ticket,)))
            else:
                groups.setdefault(one.group.number, []).append(one)
        for held in groups.values():
            group = held[0].group
            if group is not None and not _missing(group, held, view):
                verdicts.append(Apply(tuple(one.ticket for one in held)))
        return verdicts

    def explain(self, one: Waiting, waiting: Sequence[Waiting], view: View) -> str:
        """Names those of its group who have not come."""
        if one.group is None:
            return "its turn comes at once"
        here = [other for other in waiting if other.group is not None and other.group.number == one.group.number]
        missing = listed(_missing(one.group, here, view))
        everybody = listed(member.sender.worker for member in one.group.members)
        return f"shard 0 made update {one.group.number} of {everybody}; not here yet: {missing}"


def _missing(group: UpdateGroup, held: Sequence[Waiting], view: View) -> list[str]:
    """Those of the group whose part of it is still to come."""
    come = {one.worker for one in held}
    return [
        member.sender.worker
        for member in group.members
        if member.sender.worker not in come and not view.settled(member)
    ]
