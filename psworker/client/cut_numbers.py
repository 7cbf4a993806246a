"""The numbers of cuts that a worker's messages carry (`pswire.messages.Cut`). No I/O.

A push, assign, tune or registration carries one number on all of its shards, so that it is in a cut on each of them, or
on none.
"""

import threading
from types import TracebackType


class CutNumbers:
    """Tracks the newest known cut and the cut number that messages carry; a context manager around each change.

        with cuts as number:  # adopts the newest
            ...               # sends messages with this number; no heartbeat carries a newer one meanwhile

    A change that begins adopts the newest number, so no later change carries an older one than any shard was shown. A
    push that shard 0 decides about is in a cut if it was decided before shard 0's snapshot, whatever number its first
    message had: a newer number is shown while shard 0 says that it holds the push (`note_held_push`).

    `resets` counts how often all shards went back to an older cut.

    A worker has one change at a time, begun by its own thread. `_lock` guards all fields, which heartbeats use too;
    `_changed` is notified when there is a number that a heartbeat has not shown.
    """

    def __init__(self) -> None:
        self.newest = self._adopted = self.resets = 0
        self._in_change = self._awaits_decision = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def begin_change(self, *, awaits_decision: bool = False) -> int:
        """Adopts the newest number, for all messages of a change. `awaits_decision`: shard 0 decides on it."""
        with self._lock:
            self._in_change, self._awaits_decision = True, awaits_decision
            self._adopted = self.newest
            return self._adopted

    def end_change(self) -> None:
        """All messages of the change are answered or abandoned."""
        with self._lock:
            self._in_change = self._awaits_decision = False
            if self.newest > self._adopted:
                self._changed.notify_all()

    def __enter__(self) -> int:
        return self.begin_change()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_change()

    def to_show(self) -> int:
        """The number for other messages: the newest, or that of the open change."""
        with self._lock:
            if not self._in_change:
                self._adopted = self.newest
            return self._adopted

    def note(self, number: int, resets: int | None = None) -> None:
        """Notes the number in an answer of a shard.

        Threads other than the worker's own pass the `resets` from before the call; an outdated number is ignored.
        """
        if number > self.newest:
            with self._lock:
                if resets is None or resets == self.resets:
                    self.newest = max(number, self.newest)
                    if not self._in_change:
                        self._changed.notify_all()

    def note_held_push(self, number: int, resets: int) -> None:
        """Notes that shard 0 held a push of the worker when its last cut had this number; `resets` as in `note`.

        The push is decided after that snapshot, as is any later one: the number is shown although a push is open.
        """
        with self._lock:
            if resets == self.resets and self._awaits_decision and number > self._adopted:
                self._adopted = number
                self._changed.notify_all()

    def reset(self, number: int) -> None:
        """Continues from an older number, after all shards went back to it."""
        with self._lock:
            self.newest = self._adopted = number
            self.resets += 1

    def wait(self, shown: int, timeout: float, closing: threading.Event) -> bool:
        """Waits until there is a number above `shown` to show, for `timeout` seconds at most; whether `closing` is set.

        Whoever sets `closing` calls `wake` next.
        """
        with self._lock:
            self._changed.wait_for(lambda: closing.is_set() or self._showable() > shown, timeout)
        return closing.is_set()

    def _showable(self) -> int:
        return self._adopted if self._in_change else self.newest

    def wake(self) -> None:
        """Ends all waits."""
        with self._lock:
            self._changed.notify_all()
