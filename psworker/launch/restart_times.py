"""Restarts of failed processes: which are started again, and when. Pure: the caller passes the time, in seconds.

A process is started again up to a limit over the whole job. The pause before it doubles while the process fails again
soon, and is the shortest after it has run for `STABLE`.
"""

import math
from dataclasses import dataclass

#: Seconds: the shortest pause, the longest, and after how long a process did not fail again soon. Workers try to reach
#: a server for 60 s by default (`--timeout`): a few pauses in a row must be shorter.
FIRST_PAUSE, LONGEST_PAUSE, STABLE = 0.5, 10.0, 60.0


@dataclass
class _History:
    """The restarts of one process so far; `started` is when it was started last."""

    started: float
    restarts: int = 0
    pause: float = 0.0


class Restarts:
    """The restarts of a job's processes, by name; `limit` of each.

    restarts.started("worker-0", now)
    if (pause := restarts.schedule("worker-0", now)) is not None:       # it has failed
        sleep(pause)
        for name in restarts.take_due(now): ...                         # start it again
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._histories: dict[str, _History] = {}
        self._due: dict[str, float] = {}

    def started(self, name: str, now: float) -> None:
        """Note that a process was started, for the first time or again."""
        history = self._histories.setdefault(name, _History(now))
        history.started = now

    def schedule(self, name: str, now: float) -> float | None:
        """The pause, in seconds, after which a process that has failed is due; None if its restarts are used up."""
        history = self._histories[name]
        if history.restarts >= self.limit:
            return None
        soon = now - history.started < STABLE
        history.pause = min(max(FIRST_PAUSE, 2 * history.pause), LONGEST_PAUSE) if soon else FIRST_PAUSE
        history.restarts += 1
        self._due[name] = now + history.pause
        return history.pause

    def count(self, name: str) -> int:
        """The number of restarts of a process, including one that is due; 0 for a process that was never started."""
        return self._histories[name].restarts if name in self._histories else 0

    def waiting(self, name: str) -> bool:
        """True if a process is to be started again."""
        return name in self._due

    @property
    def next_due(self) -> float:
        """When the next process is due; infinity: none."""
        return min(self._due.values(), default=math.inf)

    def take_due(self, now: float) -> list[str]:
        """The processes that are due, in this order; they no longer wait."""
        names = sorted((name for name, due in self._due.items() if due <= now), key=self._due.__getitem__)
        for name in names:
            del self._due[name]
        return names

    def cancel(self) -> None:
        """Start none of the waiting processes."""
        self._due.clear()
