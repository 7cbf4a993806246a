"""Deadlines for waits that have none of their own: a call of a long stream ends in time, or is cancelled.

One thread, asleep until the earliest deadline there was when it fell asleep. May import the standard library.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class Deadline:
    """The end of one wait; `passed` is set just before `cancel` is called."""

    at: float
    cancel: Callable[[], object]
    passed: bool = False


class Deadlines:
    """The deadlines of the waits under way. Any thread may set them.

        with deadlines.of(5.0, call.cancel) as deadline:
            answer = next(call)          # raises when cancelled; deadline.passed says that it was for this

    `_changed` guards the set, and wakes the thread when a deadline comes that is earlier than what it sleeps for.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waits: set[Deadline] = set()
        self._wakes = float("inf")
        self._closed = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def of(self, seconds: float, cancel: Callable[[], object]) -> Iterator[Deadline]:
        """Calls `cancel`, in another thread, unless the block ends within `seconds`."""
        deadline = Deadline(time.monotonic() + seconds, cancel)
        with self._changed:
            self._waits.add(deadline)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="psworker-deadlines", daemon=True)
                self._thread.start()
            elif deadline.at < self._wakes:
                self._changed.notify()
        try:
            yield deadline
        finally:
            with self._changed:
                self._waits.discard(deadline)

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
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
                    self._wakes = min((deadline.at for deadline in self._waits), default=float("inf"))
                    self._changed.wait(None if self._wakes == float("inf") else self._wakes - now)
            for deadline in late:
                deadline.passed = True
                deadline.cancel()
