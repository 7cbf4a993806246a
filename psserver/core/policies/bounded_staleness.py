"""Bounded staleness: a worker too far ahead of the slowest waits for it (stale synchronous parallel).

Source: Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
"""

from collections.abc import Callable, Sequence

from psserver.core.policies.policy import Apply, Decision, PushView, ShardView, join_names
from pswire.specs import consistency


class BoundedStaleness:
    """No push advances its worker's clock more than `spec.steps` beyond the lowest clock in training."""

    def __init__(self, spec: consistency.Bounded) -> None:
        self.spec = spec

    def decide(self, pushes: Sequence[PushView], shard: ShardView) -> list[Decision]:
        """Apply the largest set of pushes after which the bound holds, one update each, in order of arrival.

        Pushes that are applied together raise the least clock when all of the slowest are among them, and then by one,
        whichever others are: so with 0 steps the pushes of all workers in training are applied together.
        """
        progress = shard.members.progress
        floor = progress.least_clock + (0 if self._slowest(pushes, shard) else 1)
        return [Apply((push.ticket,)) for push in pushes if shard.members[push.worker].clock < floor + self.spec.steps]

    def awaited(self, pushes: Sequence[PushView], shard: ShardView) -> dict[str, int]:
        """The slowest workers that have no push held, and their clock."""
        return dict.fromkeys(self._slowest(pushes, shard), shard.members.progress.least_clock)

    def explain(self, pushes: Sequence[PushView], shard: ShardView) -> Callable[[PushView], str]:
        """Name the slowest workers, which have no push held."""
        slowest, least = self._slowest(pushes, shard), shard.members.progress.least_clock
        verb = "is" if len(slowest) == 1 else "are"
        who = f"{self.spec}: {join_names(slowest)} {verb} at step {least}"

        def explanation(push: PushView) -> str:
            behind = shard.members[push.worker].clock - least
            return f"{who}, {behind} behind" if behind else f"{who}, which is not done"

        return explanation

    def _slowest(self, pushes: Sequence[PushView], shard: ShardView) -> list[str]:
        """Workers with the least clock and no held push: none when the least clock is about to rise."""
        progress = shard.members.progress
        least, pushed = progress.least_clock, {push.worker for push in pushes}
        return [name for name, one in progress.training.items() if one.clock == least and name not in pushed]
