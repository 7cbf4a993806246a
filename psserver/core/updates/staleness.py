"""Staleness: how many changes the weights of a push have missed, and how many pushes had which staleness.

What is done with stale pushes is in `psserver.core.policies.stale_pushes`.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from psserver.core.part import Call
from psserver.core.policies.update_order import UpdateOrder
from psserver.core.variables.store import Store
from pswire import messages as ms

#: A staleness below this is counted as it is, others are `rounded`.
EXACT = 1 << 10


class Staleness:
    """The staleness of pushes; `order` is there if this shard orders changes on all shards.

    `changes` counts those of variables since this object was made: the staleness of a push is computed once until the
    next one. `counts` has the applied pushes by staleness, `rounded` if it is large.
    """

    def __init__(self, store: Store, order: UpdateOrder | None) -> None:
        self._store, self._order = store, order
        self.changes = 0
        self.counts: defaultdict[int, int] = defaultdict(int)

    def of(self, call: Call[Any]) -> int:
        """The most changes that the weights of a push's gradients have had since they were served, on any shard."""
        if call.known_after != self.changes:
            call.known_after, call.staleness = self.changes, self._computed(call.message)
        return call.staleness

    def _computed(self, push: ms.Push) -> int:
        staleness, variables = 0, self._store.variables
        for gradient in push.gradients:
            staleness = max(staleness, variables[gradient.name].version - gradient.version)
        if self._order is None or not push.remote:
            return staleness
        return max(staleness, self._order.staleness(push.remote))

    def status(self) -> ms.Staleness:
        """The median and a high percentile of all applied pushes."""
        return ms.Staleness(percentile(self.counts, 50), percentile(self.counts, 99))


def rounded(staleness: int) -> int:
    """The staleness under which one of `EXACT` or more is counted: at most 1 part in 512 lower.

    So there are 512 counts at most for each doubling.
    """
    cut = staleness.bit_length() - EXACT.bit_length() + 1
    return staleness >> cut << cut


def percentile(counts: Mapping[int, int], percent: float) -> int:
    """The nearest rank: the least staleness that `percent` % of the pushes do not exceed; 0 without pushes.

    `counts` are of pushes by staleness. The definition of numpy's `percentile(..., method="inverted_cdf")`.
    """
    rank, seen = max(1, math.ceil(percent * sum(counts.values()) / 100)), 0
    for staleness in sorted(counts):
        seen += counts[staleness]
        if seen >= rank:
            return staleness
    return 0
