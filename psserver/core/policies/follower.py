"""Follower: the policy of the other shards, which apply what shard 0 has decided for all, and nothing else.

A worker asks shard 0 first, and sends the decision along with the other parts of its push; a push that shard 0 drops is
not sent to the other shards. The order of updates is not decided here: a call is pending for the policy only when all
changes before it are settled (`pswire.messages.ChangeId`).
"""

from __future__ import annotations

from collections.abc import Sequence

from psserver.core.policies.policy import Apply, CallView, Decision, Serve, ShardView, listed
from pswire.messages import UpdateGroup


class Follower:
    """Pushes of one group make one update when all of them have arrived; others are applied at once.

    The group goes on without a member whose part is settled (`ShardView.settled`): its lease has expired here, or it
    has abandoned the part, which is refused if it arrives later.
    """

    def decide(self, calls: Sequence[CallView], shard: ShardView) -> list[Decision]:
        """Make the updates that are complete, and serve pulls."""
        decisions: list[Decision] = []
        groups: dict[int, list[CallView]] = {}
        for call in calls:
            if call.applied:
                decisions.append(Serve(call.ticket))
            elif call.group is None:
                decisions.append(Apply((call.ticket,)))
            else:
                groups.setdefault(call.group.number, []).append(call)
        for held in groups.values():
            group = held[0].group
            if group is not None and not _missing(group, held, shard):
                decisions.append(Apply(tuple(call.ticket for call in held)))
        return decisions

    def explain(self, call: CallView, calls: Sequence[CallView], shard: ShardView) -> str:
        """Name the workers of its group whose push has not arrived."""
        if call.group is None:
            return "it is not held"
        here = [other for other in calls if other.group is not None and other.group.number == call.group.number]
        missing = listed(_missing(call.group, here, shard))
        everybody = listed(member.sender.worker for member in call.group.members)
        return f"shard 0 made update {call.group.number} of {everybody}; not arrived yet: {missing}"


def _missing(group: UpdateGroup, held: Sequence[CallView], shard: ShardView) -> list[str]:
    """The workers of the group whose part has not arrived."""
    arrived = {call.worker for call in held}
    members = [one for one in group.members if one.sender.worker not in arrived]
    return [one.sender.worker for one in members if not shard.settled(one)]
