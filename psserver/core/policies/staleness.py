"""Handling of stale pushes, whichever policy releases them: a policy around another.

It changes the decisions up to the first update of the inner policy: after that, the staleness of the others is another.
Delay compensation is not here, as it changes gradients and not decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

from psserver.core.policies.policy import Apply, CallView, Decision, Drop, Policy, ShardView


class StalenessPolicy:
    """A policy around `inner`, which explains as that does."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner

    def explain(self, call: CallView, calls: Sequence[CallView], shard: ShardView) -> str:
        """Explain as `inner` does."""
        return self.inner.explain(call, calls, shard)


class DropStale(StalenessPolicy):
    """A push with more staleness than `above` is dropped when `inner` would apply it.

    Not before: a worker that is held because it is ahead would get further ahead by it.
    """

    def __init__(self, inner: Policy, above: int) -> None:
        super().__init__(inner)
        self.above = above

    def decide(self, calls: Sequence[CallView], shard: ShardView) -> list[Decision]:
        """Decide as `inner` does up to its first update, without that if some of its pushes are too stale."""
        decisions, pushes = _up_to_first_update(self.inner.decide(calls, shard), calls)
        drops = [
            Drop(one.ticket, f"drop:{self.above}: staleness {one.staleness}; compute the next with the fresh weights")
            for one in pushes
            if one.staleness > self.above
        ]
        return [*decisions[:-1], *drops] if drops else decisions


class ScaleStale(StalenessPolicy):
    """The learning rate of an update is divided by the greatest staleness of its pushes, if that is more than 1.

    Source: W. Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016.
    """

    def decide(self, calls: Sequence[CallView], shard: ShardView) -> list[Decision]:
        """Decide as `inner` does up to its first update, which is scaled."""
        decisions, pushes = _up_to_first_update(self.inner.decide(calls, shard), calls)
        staleness = max([one.staleness for one in pushes], default=0)
        if staleness > 1:
            update = decisions[-1]
            assert isinstance(update, Apply)
            decisions[-1] = Apply(update.tickets, update.scale / staleness)
        return decisions


def _up_to_first_update(
    decisions: Sequence[Decision], calls: Sequence[CallView]
) -> tuple[list[Decision], list[CallView]]:
    """The decisions up to the first update, which comes last, and its pushes: none if there is no update."""
    for count, decision in enumerate(decisions, 1):
        if isinstance(decision, Apply):
            return list(decisions[:count]), [call for call in calls if call.ticket in decision.tickets]
    return list(decisions), []
