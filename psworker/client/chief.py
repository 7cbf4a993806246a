"""Tracks whether this worker is chief, as last reported by shard 0. May import messages.

The chief changes when it dies or fails (`psserver.core.members.chief`).
"""

from __future__ import annotations

import logging
import threading

from pswire.messages import Answer, Joined, Renewed, Taken

logger = logging.getLogger(__name__)


class ChiefStatus:
    """Whether this worker is chief, reported `updates` times. Thread-safe: heartbeat threads update it too."""

    def __init__(self, worker: str) -> None:
        self.chief = False
        self.updates = 0
        self._worker = worker
        self._lock = threading.Lock()

    def update(self, shard: int, answer: Answer, updates_before: int | None = None) -> None:
        """Updates the status from an answer of shard 0, if the answer has one.

        Heartbeats give the number of `updates` from before their request: an update since may be newer, and counts.
        """
        if shard or not isinstance(answer, Joined | Renewed | Taken):
            return
        with self._lock:
            if updates_before is not None and updates_before != self.updates:
                return
            took_over = answer.chief and not self.chief and self.updates > 0
            self.chief = answer.chief
            self.updates += 1
        if took_over:
            logger.warning("%s is now the chief: the previous one is gone", self._worker)
