"""Bounded staleness: a worker too far ahead of the slowest waits for it (stale synchronous parallel).

Source: Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
"""

from __future__ import annotations

from collections.abc import Sequence

from psserver.core.policies.policy import Apply, CallView, Decision, Serve, ShardView, listed


class BoundedStaleness:
    """No push advances its worker's clock more than `steps` beyond the lowest clock in training; pulls do not wait."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def decide(self, calls: Sequence[CallView], shard: ShardView) -> list[Decision]:
        """Apply the largest set of pushes after which the bound holds, one update each, in order of arrival.

        Pushes that are applied together raise the least clock when all of the slowest are among them, and then by one,
        whichever others are: so with 0 steps the pushes of all workers in training are applied together.
        """
        progress = shard.members.progress
        floor = progress.least_clock + (0 if self._slowest(calls, shard) else 1)
        decisions: list[Decision] = []
        for call in calls:
            if call.applied:
                decisions.append(Serve(call.ticket))
            elif shard.members[call.worker].clock + 1 <= floor + self.steps:
                decisions.append(Apply((call.ticket,)))
        return decisions

    def explain(self, call: CallView, calls: Sequence[CallView], shard: ShardView) -> str:
        """Name the slowest workers, which have no push pending."""
        slowest, least = self._slowest(calls, shard), shard.members.progress.least_clock
        behind = shard.members[call.worker].clock - least
        how_far = f", {behind} behind" if behind else ", which is not done"
        verb = "is" if len(slowest) == 1 else "are"
        return f"bounded:{self.steps}: {listed(slowest)} {verb} at step {least}{how_far}"

    def _slowest(self, calls: Sequence[CallView], shard: ShardView) -> list[str]:
        """Workers with the least clock and no pending push: none when the least clock is about to rise."""
        progress = shard.members.progress
        least, pushed = progress.least_clock, {call.worker for call in calls if not call.applied}
        return [name for name, one in progress.training.items() if one.clock == least and name not in pushed]
