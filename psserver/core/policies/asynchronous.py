"""Asynchronous: every push is applied as it arrives, every pull answered at once (Downpour SGD).

Source: J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from psserver.core.policies.policy import Apply, CallView, Decision, Serve, ShardView


class Asynchronous:
    """No worker waits for another."""

    def decide(self, calls: Sequence[CallView], shard: ShardView) -> list[Decision]:
        """Apply pushes and serve pulls, in order of arrival."""
        decisions: list[Decision] = []
        for call in calls:
            if not call.applied:
                decisions.append(Apply((call.ticket,)))
            decisions.append(Serve(call.ticket))
        return decisions

    def explain(self, call: CallView, calls: Sequence[CallView], shard: ShardView) -> str:
        """No push is held."""
        return "async: it is not held"
