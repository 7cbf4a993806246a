"""The clock of a server: the seconds it was awake, and the time to exit after its job. Nothing here waits."""

import logging
from collections.abc import Callable

from psserver.core.members.membership import JobEnd
from pswire.plurals import pluralize

#: Seconds between two ticks, at most; short leases have more frequent ticks.
TICK = 1.0

#: Ticks in the time of one lease, at least.
TICKS_PER_LEASE = 12

#: The least number of leases that a server with `linger` waits when its workers have failed or were lost: a worker that
#: was disconnected or is restarted is back by then.
MIN_LEASES_BEFORE_EXIT = 4

log = logging.getLogger(__name__)


def tick_seconds(lease: float) -> float:
    """Seconds between two ticks of a server with this lease."""
    return min(TICK, lease / TICKS_PER_LEASE)


class Clock:
    """Seconds in which this process was awake, by a clock `now` that is read every `tick` seconds.

    Leases must not end because the machine slept or the process was stopped, so a longer gap between two readings
    counts as two ticks: heartbeats that have arrived are read in less time.
    """

    def __init__(self, now: Callable[[], float], tick: float) -> None:
        self._now, self._tick = now, tick
        self._last = self._time = now()

    def __call__(self) -> float:
        """The time."""
        now = self._now()
        self._time += min(now - self._last, 2 * self._tick)
        self._last = now
        return self._time


class Linger:
    """Decides when a server of one job exits: no worker is left, and for some time none has joined.

    That time is `linger` seconds if a worker has finished the job, otherwise at least `MIN_LEASES_BEFORE_EXIT` leases.
    """

    def __init__(self, linger: float, lease: float) -> None:
        self._linger, self._after_failure = linger, max(linger, MIN_LEASES_BEFORE_EXIT * lease)
        self._warned: JobEnd | None = None

    def ends(self, over: JobEnd | None, now: float) -> bool:
        """True if the server ends now; logs why, and warns in advance if no worker has finished the job."""
        if over is None:
            return False
        if not over.done and over != self._warned and now - over.since >= 2 * TICK:  # Docker restarts a worker sooner
            self._warned = over
            log.warning(
                "no worker is left of %s, and none has finished the job: the server ends in %g s unless one joins",
                pluralize(over.workers, "worker"),
                self._after_failure,
            )
        bound = self._linger if over.done else self._after_failure
        if now - over.since < bound:
            return False
        if over.done:
            log.info("the job is done, and no worker has joined for %g s", bound)
        else:
            log.warning("no worker has finished the job, and none has joined for %g s", bound)
        return True
