"""Metrics of a shard: rates of traffic over the last seconds, and percentiles of the staleness of all pushes.

Counting costs a fraction of a microsecond, and memory stays bounded. Time is an argument. Imports messages only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from pswire.messages import Traffic

#: Seconds over which rates are means, as long as ticks come, and the least between two snapshots.
WINDOW, INTERVAL = 10.0, 0.5
#: Fewer seconds than this count as this, so that a push just after the first tick makes no huge rate.
SHORTEST = 1.0
#: A staleness below this is counted as it is, others are `rounded`.
EXACT = 1 << 10


class _Snapshot(NamedTuple):
    at: float
    pushes: int
    bytes_in: int
    bytes_out: int


class TrafficMeter:
    """Applied pushes, and bytes of tensors received and sent, with a snapshot of these counts every `INTERVAL`.

    The counts are added to by the shard; `next_snapshot` is when a tick takes the next snapshot.
    """

    __slots__ = ("_snapshots", "bytes_in", "bytes_out", "next_snapshot", "pushes")

    def __init__(self) -> None:
        self.pushes = self.bytes_in = self.bytes_out = 0
        self._snapshots: deque[_Snapshot] = deque()
        self.next_snapshot = -math.inf

    def tick(self, now: float) -> None:
        """Take a snapshot if one is due."""
        if now < self.next_snapshot:
            return
        self.next_snapshot = now + INTERVAL
        self._snapshots.append(_Snapshot(now, self.pushes, self.bytes_in, self.bytes_out))
        while self._snapshots[0].at < now - WINDOW:
            self._snapshots.popleft()

    def traffic(self, now: float) -> Traffic:
        """Rates since the oldest snapshot within the `WINDOW`, or else since the last one; 0 before the first."""
        if not self._snapshots:
            return Traffic()
        since = next((one for one in self._snapshots if one.at >= now - WINDOW), self._snapshots[-1])
        seconds = max(now - since.at, SHORTEST)
        return Traffic(
            (self.pushes - since.pushes) / seconds,
            (self.bytes_in - since.bytes_in) / seconds,
            (self.bytes_out - since.bytes_out) / seconds,
        )


def rounded(staleness: int) -> int:
    """The staleness under which one of `EXACT` or more is counted: at most 1 part in 512 lower.

    So there are 512 counts at most for each doubling.
    """
    cut = staleness.bit_length() - EXACT.bit_length() + 1
    return staleness >> cut << cut


def percentile(counts: Mapping[int, int], percent: float) -> int:
    """The nearest rank: the least staleness that `percent` % of the pushes do not exceed; 0 without pushes.

    The definition of numpy's `percentile(..., method="inverted_cdf")`.

    Args:
        counts: number of pushes by staleness.
        percent: from 0 to 100; another raises `ValueError`.
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile is from 0 to 100 percent, got {percent}")
    rank, seen = max(1, math.ceil(percent * sum(counts.values()) / 100)), 0
    for staleness in sorted(counts):
        seen += counts[staleness]
        if seen >= rank:
            return staleness
    return 0
