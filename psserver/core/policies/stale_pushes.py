"""Handling of stale pushes under any policy, as a wrapper around a policy.

It changes the decisions up to the first update of the inner policy: after that, the staleness of the other pushes has
changed. Delay compensation is elsewhere, because it changes gradients, not decisions.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from psserver.core.policies.policy import Apply, Decision, Drop, Policy, PushView, ShardView


class StalenessPolicy(ABC):
    """A policy that decides and explains as `inner` does, but handles its first update."""

    def __init__(self, inner: Policy) -> None:
        self.inner, self.explain, self.awaited = inner, inner.explain, inner.awaited

    def decide(self, pushes: Sequence[PushView], shard: ShardView) -> list[Decision]:
        """Decide as `inner` does up to its first update, and handle that."""
        decisions: list[Decision] = []
        for decision in self.inner.decide(pushes, shard):
            if isinstance(decision, Apply):
                return decisions + self._handled(decision, [one for one in pushes if one.ticket in decision.tickets])
            decisions.append(decision)
        return decisions

    @abstractmethod
    def _handled(self, update: Apply, pushes: Sequence[PushView]) -> list[Decision]:
        """The decisions in place of an update of these pushes."""


class DropPushes(StalenessPolicy):
    """A push for which there is a reason is dropped when `inner` would apply it.

    Not earlier, because a worker that is held for being ahead would get further ahead.
    """

    def _handled(self, update: Apply, pushes: Sequence[PushView]) -> list[Decision]:
        drops: list[Decision] = [Drop(one.ticket, reason) for one in pushes if (reason := self._reason(one))]
        return drops or [update]

    @abstractmethod
    def _reason(self, push: PushView) -> str:
        """Why a push is dropped; empty if it is not."""


class DropStale(DropPushes):
    """A push with more staleness than `above` is dropped."""

    def __init__(self, inner: Policy, above: int) -> None:
        super().__init__(inner)
        self.above = above

    def _reason(self, push: PushView) -> str:
        if push.staleness <= self.above:
            return ""
        return f"drop:{self.above}: staleness {push.staleness}; continue with the fresh weights"


class ScaleStale(StalenessPolicy):
    """The learning rate of an update is divided by the greatest staleness of its pushes, if that is more than 1.

    Source: W. Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016.
    """

    def _handled(self, update: Apply, pushes: Sequence[PushView]) -> list[Decision]:
        staleness = max([one.staleness for one in pushes], default=0)
        return [Apply(update.tickets, update.scale / max(staleness, 1))]
