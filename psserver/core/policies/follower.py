"""Follower: the policy of the other shards, which apply what shard 0 has decided for all, and nothing else.

A worker asks shard 0 first, and sends the decision along with the other parts of its push; a push that shard 0 drops is
not sent to the other shards. The order of updates is not decided here: a call is pending for the policy only when all
changes before it are settled (`pswire.messages.ChangeId`).
"""

from collections.abc import Callable, Sequence

from psserver.core.policies.policy import Apply, Decision, PushView, ShardView, join_names
from pswire.messages import UpdateGroup


class Follower:
    """Pushes of one group make one update when all of them have arrived; others are applied at once.

    The group goes on without a member whose part is settled (`ShardView.settled`): its lease has expired here, or it
    has abandoned the part, which is refused if it arrives later.
    """

    def decide(self, pushes: Sequence[PushView], shard: ShardView) -> list[Decision]:
        """Make the updates that are complete."""
        complete = [parts for group, parts in _by_group(pushes).items() if not _missing(group, parts, shard)]
        alone = [[push] for push in pushes if push.group is None]
        return [Apply(tuple([push.ticket for push in parts])) for parts in (*alone, *complete)]

    def awaited(self, pushes: Sequence[PushView], shard: ShardView) -> dict[str, int]:
        """None beside those whose part of a push has not arrived, which `PendingCalls` knows."""
        return {}

    def explain(self, pushes: Sequence[PushView], shard: ShardView) -> Callable[[PushView], str]:
        """Name the workers of its group whose push has not arrived."""
        explanations: dict[UpdateGroup | None, str] = {None: "it is not held"}
        for group, parts in _by_group(pushes).items():
            missing, everybody = _missing(group, parts, shard), [one.sender.worker for one in group.members]
            explanations[group] = (
                f"shard 0 made update {group.number} of {join_names(everybody)}; not arrived yet: {join_names(missing)}"
            )
        return lambda push: explanations[push.group]


def _by_group(pushes: Sequence[PushView]) -> dict[UpdateGroup, list[PushView]]:
    groups: dict[UpdateGroup, list[PushView]] = {}
    for push in pushes:
        if push.group is not None:
            groups.setdefault(push.group, []).append(push)
    return groups


def _missing(group: UpdateGroup, parts: Sequence[PushView], shard: ShardView) -> list[str]:
    """The workers of the group whose part has not arrived."""
    arrived = {push.worker for push in parts}
    members = [one for one in group.members if one.sender.worker not in arrived]
    return [one.sender.worker for one in members if not shard.settled(one)]
