"""What goes through a shard, and how stale: rates over the last seconds, and percentiles over all pushes.

Counting costs a fraction of a microsecond, and memory stays bounded. Time is an argument. Imports messages only.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from pswire.messages import Staleness, Traffic

#: Rates are means over so many seconds, as long as ticks come; between two that are kept lies an `INTERVAL` at least.
WINDOW, INTERVAL = 10.0, 0.5
#: Fewer seconds than this count as this, so that a push just after the first tick makes no huge rate.
SHORTEST = 1.0


class _Snapshot(NamedTuple):
    at: float
    pushes: int
    bytes_in: int
    bytes_out: int


class TrafficMeter:
    """Counts what goes through, and remembers at each tick how much it was until then."""

    __slots__ = ("_due", "_snapshots", "bytes_in", "bytes_out", "pushes")

    def __init__(self) -> None:
        self.pushes = self.bytes_in = self.bytes_out = 0
        self._snapshots: deque[_Snapshot] = deque()
        self._due = -math.inf

    def count(self, pushes: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """Adds pushes that were applied, and bytes of tensors that came and went."""
        self.pushes += pushes
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out

    def tick(self, now: float) -> None:
        """Time has passed. May be called at any message: a tick soon after another one costs nothing."""
        if now < self._due:
            return
        self._due = now + INTERVAL
        self._snapshots.append(_Snapshot(now, self.pushes, self.bytes_in, self.bytes_out))
        while self._snapshots[0].at < now - WINDOW:
            self._snapshots.popleft()

    def traffic(self, now: float) -> Traffic:
        """What came since the oldest tick within the `WINDOW`, or else since the last one, over the seconds since.

        Nothing before the first tick.
        """
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
    """How many pushes were how stale: exactly below 1,024, above it rounded down to 10 binary digits.

    So a percentile is exact, or too low by 1 part in 512 at most, and there are 512 counts at most for each doubling.
    """

    __slots__ = ("_counts", "total")

    _DIGITS = 10

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[int, int] = {}

    def add(self, staleness: int) -> None:
        """Counts a push."""
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
            raise ValueError(f"a percentile is asked for from 0 to 100 percent, got {percent}")
        rank, seen = max(1, math.ceil(percent * self.total / 100)), 0
        for staleness in sorted(self._counts):
            seen += self._counts[staleness]
            if seen >= rank:
                return staleness
        return 0

    def summary(self) -> Staleness:
        """The median and the 99th percentile."""
        return Staleness(self.percentile(50), self.percentile(99))
