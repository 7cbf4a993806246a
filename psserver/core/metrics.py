"""Metrics of a shard: rates of traffic over the last seconds, and percentiles of the staleness of all pushes.

Counting costs a fraction of a microsecond, and memory stays bounded. Time is an argument. Imports messages only.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from pswire.messages import Staleness, Traffic

#: Seconds over which rates are means, as long as ticks come, and the least between two snapshots.
WINDOW, INTERVAL = 10.0, 0.5
#: Fewer seconds than this count as this, so that a push just after the first tick makes no huge rate.
SHORTEST = 1.0


class _Snapshot(NamedTuple):
    at: float
    pushes: int
    bytes_in: int
    bytes_out: int


class TrafficMeter:
    """Counts pushes and bytes, and keeps a snapshot of the counts every `INTERVAL`.

    `next_snapshot` is when a tick takes the next one.
    """

    __slots__ = ("_snapshots", "bytes_in", "bytes_out", "next_snapshot", "pushes")

    def __init__(self) -> None:
        self.pushes = self.bytes_in = self.bytes_out = 0
        self._snapshots: deque[_Snapshot] = deque()
        self.next_snapshot = -math.inf

    def count(self, pushes: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """Add applied pushes, and bytes of tensors received and sent."""
        self.pushes += pushes
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out

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


class StalenessHistogram:
    """Counts of pushes by staleness: exact below 1,024, above it rounded down to 10 binary digits.

    So a percentile is exact, or too low by 1 part in 512 at most, and there are 512 counts at most for each doubling.
    """

    __slots__ = ("_counts", "total")

    _DIGITS = 10

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[int, int] = {}

    def add(self, staleness: int) -> None:
        """Count a push."""
        if staleness >= 1 << self._DIGITS:
            cut = staleness.bit_length() - self._DIGITS
            staleness = staleness >> cut << cut
        self._counts[staleness] = self._counts.get(staleness, 0) + 1
        self.total += 1

    def percentile(self, percent: float) -> int:
        """The nearest rank: the least staleness that `percent` % of the pushes do not exceed; 0 without pushes.

        The definition of numpy's `percentile(..., method="inverted_cdf")`.

        Raises:
            ValueError: `percent` is not from 0 to 100.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile is from 0 to 100 percent, got {percent}")
        rank, seen = max(1, math.ceil(percent * self.total / 100)), 0
        for staleness in sorted(self._counts):
            seen += self._counts[staleness]
            if seen >= rank:
                return staleness
        return 0

    def summary(self) -> Staleness:
        """The median and the 99th percentile."""
        return Staleness(self.percentile(50), self.percentile(99))
