"""Traffic of a shard: rates over the last seconds."""

import math
from collections import deque

from pswire.messages import Traffic

#: Seconds over which rates are means, as long as ticks come, and the least between two snapshots.
WINDOW, INTERVAL = 10.0, 0.5
#: A shorter period counts as this long, so that a push right after the first tick does not give a huge rate.
MIN_PERIOD = 1.0


class TrafficMeter:
    """Applied pushes, and bytes of tensors received and sent, with a snapshot of these counts every `INTERVAL`.

    The counts are added to by the shard; `next_snapshot` is when the next one is due.
    """

    __slots__ = ("_snapshots", "bytes_in", "bytes_out", "next_snapshot", "pushes")

    def __init__(self) -> None:
        self.pushes = self.bytes_in = self.bytes_out = 0
        self._snapshots: deque[tuple[float, int, int, int]] = deque()  # (time, pushes, bytes_in, bytes_out)
        self.next_snapshot = -math.inf

    def tick(self, now: float) -> None:
        """Take a snapshot, which is due from `next_snapshot` on."""
        self.next_snapshot = now + INTERVAL
        self._snapshots.append((now, self.pushes, self.bytes_in, self.bytes_out))
        while self._snapshots[0][0] < now - WINDOW:
            self._snapshots.popleft()

    def traffic(self, now: float) -> Traffic:
        """Rates since the oldest snapshot within the `WINDOW`, or else since the last one; 0 before the first."""
        if not self._snapshots:
            return Traffic()
        recent = (one for one in self._snapshots if one[0] >= now - WINDOW)
        at, pushes, bytes_in, bytes_out = next(recent, self._snapshots[-1])
        seconds = max(now - at, MIN_PERIOD)
        counts = self.pushes - pushes, self.bytes_in - bytes_in, self.bytes_out - bytes_out
        return Traffic(*[count / seconds for count in counts])
