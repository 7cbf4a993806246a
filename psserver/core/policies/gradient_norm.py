"""Rejection of pushes whose gradients are too large, under any policy, as a wrapper around a policy."""

from psserver.core.policies.policy import Policy, PushView
from psserver.core.policies.stale_pushes import DropPushes
from pswire.specs.gradient_norm import GradientNormLimit


class RejectLargeGradients(DropPushes):
    """A push with a larger norm is dropped, as a stale one is."""

    def __init__(self, inner: Policy, limit: GradientNormLimit) -> None:
        super().__init__(inner)
        self.limit = limit

    def _reason(self, push: PushView) -> str:
        text = f"--max-gradient-norm {self.limit}: the norm of its gradients is {push.norm:.6g}"
        return text if push.norm > self.limit.norm else ""
