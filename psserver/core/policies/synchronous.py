"""Synchronous: an update is the mean of the first N gradients that were computed with the current weights.

Source: J. Chen et al., "Revisiting Distributed Synchronous SGD", 2016 (arXiv:1604.00981), section 3.
"""

from collections.abc import Callable, Sequence

from psserver.core.members.member import Member
from psserver.core.policies.policy import Apply, Decision, Drop, PushView, ShardView, join_names
from pswire.specs import consistency


class Synchronous:
    """Pushes are held until those of `workers` workers have arrived; a push after them is late, and dropped.

    The number is exact except at the end of the data: once a member has finished, as many are enough as are still in
    training. A lost member does not lower the number, because it may return; a stalled one does, and one more of them
    for each of `spec.backup`. No other decision depends on that, since the first pushes count.
    """

    def __init__(self, spec: consistency.Synchronous) -> None:
        self.spec = spec

    def decide(self, pushes: Sequence[PushView], shard: ShardView) -> list[Decision]:
        """Drop late pushes, and make one update when enough have arrived."""
        decisions: list[Decision] = []
        for push in pushes:
            if push.staleness:
                changes = "1 change" if push.staleness == 1 else f"{push.staleness} changes"
                needs = f"step {shard.global_step} needs gradients of the new ones"
                decisions.append(Drop(push.ticket, f"{self.spec}: late by {changes} of its weights; {needs}"))
        timely, needed = _timely(pushes), self._needed(shard)
        if len(timely) >= needed:
            decisions.append(Apply(tuple(timely.values())[:needed]))
        return decisions

    def awaited(self, pushes: Sequence[PushView], shard: ShardView) -> dict[str, int]:
        """Live workers that have no push held, and the global step: a push that was late is no progress."""
        timely = _timely(pushes)
        return {member.name: shard.global_step for member in _working(shard) if member.name not in timely}

    def explain(self, pushes: Sequence[PushView], shard: ShardView) -> Callable[[PushView], str]:
        """Count the pushes, and name the workers that may still push, or state that there are too few."""
        timely, needed = _timely(pushes), self._needed(shard)
        come = f"{self.spec}: {len(timely)} of {needed} gradients of step {shard.global_step} have arrived"
        working = [member.name for member in _working(shard)]
        awaited = [name for name in working if name not in timely]
        missing = needed - len(timely) - len(awaited)
        if missing > 0:
            more = f"{missing} more worker" + ("s" if missing > 1 else "")
            why = f"{come}; workers: {join_names(working)}; start {more} or lower N"
        else:
            why = f"{come}; not arrived yet: {join_names(awaited)}"
        return lambda push: why

    def _needed(self, shard: ShardView) -> int:
        progress, needed = shard.members.progress, self.spec.workers
        if progress.ending or progress.stalled:
            fewest = 1 if progress.ending else needed + self.spec.backup - len(progress.stalled)
            needed = min(needed, max(1, fewest, len(progress.training)))
        return needed


def _working(shard: ShardView) -> list[Member]:
    """The live workers whose push may come."""
    stalled = shard.members.progress.stalled
    return [member for member in shard.members.live if not member.finished and member.name not in stalled]


def _timely(pushes: Sequence[PushView]) -> dict[str, int]:
    """The ticket of each worker with a gradient of the present weights, in order of arrival."""
    timely: dict[str, int] = {}
    for push in pushes:
        if not push.staleness:
            timely.setdefault(push.worker, push.ticket)
    return timely
