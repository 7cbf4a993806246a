"""Deadlines for waits without a timeout of their own: a call on a long-lived stream ends in time or is cancelled."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Deadline:
    """The end of one wait; `passed` is set just before `cancel` is called."""

    at: float
    cancel: Callable[[], object]
    passed: bool = False


class Deadlines:
    """The deadlines of the present waits, and a thread that sleeps until the earliest. Thread-safe.

    `_changed` guards the set, and wakes the thread for a deadline that is earlier than `_wakes`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waits: set[Deadline] = set()
        self._wakes = math.inf
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="psworker-deadlines", daemon=True)
        self._thread.start()

    def set(self, seconds: float, cancel: Callable[[], object]) -> Deadline:
        """Calls `cancel`, in another thread, unless the deadline is dropped within `seconds`."""
        deadline = Deadline(time.monotonic() + seconds, cancel)
        with self._changed:
            self._waits.add(deadline)
            if deadline.at < self._wakes:
                self._changed.notify()
        return deadline

    def drop(self, deadline: Deadline) -> None:
        """The wait is over."""
        with self._changed:
            self._waits.discard(deadline)

    def pass_all(self) -> None:
        """Cancels all waits."""
        with self._changed:
            for deadline in self._waits:
                deadline.at = -math.inf
            self._changed.notify()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                late = [deadline for deadline in self._waits if deadline.at <= now]
                self._waits.difference_update(late)
                if not late:
                    self._wakes = min((deadline.at for deadline in self._waits), default=math.inf)
                    self._changed.wait(None if self._wakes == math.inf else self._wakes - now)
            while late:  # no name here keeps a deadline while the thread sleeps
                late[-1].passed = True
                late.pop().cancel()
