"""Rejection of pushes whose gradients are too large, under any policy, as a wrapper around a policy."""

from collections.abc import Sequence

from psserver.core.policies.policy import Apply, Decision, Drop, Policy, PushView
from psserver.core.policies.staleness import StalenessPolicy
from pswire.specs.gradient_norm import GradientNormLimit


class RejectLargeGradients(StalenessPolicy):
    """A push with a larger norm is dropped when `inner` would apply it, and no earlier, as a stale one is."""

    def __init__(self, inner: Policy, limit: GradientNormLimit) -> None:
        super().__init__(inner)
        self.limit = limit

    def _handled(self, update: Apply, pushes: Sequence[PushView]) -> list[Decision]:
        drops: list[Decision] = []
        for one in pushes:
            if one.norm > self.limit.norm:
                text = f"--max-gradient-norm {self.limit}: the norm of its gradients is {one.norm:.6g}"
                drops.append(Drop(one.ticket, text))
        return drops or [update]
