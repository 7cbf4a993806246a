"""Asynchronous: every push is applied as it arrives (Downpour SGD).

Source: J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1.
"""

from collections.abc import Callable, Sequence

from psserver.core.policies.policy import Apply, Decision, PushView, ShardView


class Asynchronous:
    """No worker waits for another."""

    def decide(self, pushes: Sequence[PushView], shard: ShardView) -> list[Decision]:
        """Apply pushes in order of arrival."""
        return [Apply((push.ticket,)) for push in pushes]

    def awaited(self, pushes: Sequence[PushView], shard: ShardView) -> dict[str, int]:
        """No worker is waited for."""
        return {}

    def explain(self, pushes: Sequence[PushView], shard: ShardView) -> Callable[[PushView], str]:
        """No push is held."""
        return lambda push: "async: it is not held"
