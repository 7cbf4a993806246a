"""Tracks whether this worker is chief, as last reported by shard 0. May import messages.

The chief changes when it dies or fails (`psserver.core.members.chief`).
"""

from __future__ import annotations

import logging
import threading

from pswire.messages import Answer, Joined, Renewed, Taken

logger = logging.getLogger(__name__)


class ChiefStatus:
    """Whether this worker is chief. Thread-safe: heartbeat threads and the worker's own thread update it.

    Args:
        worker: the worker's name, for the log.

    Attributes:
        chief: whether it is the chief.
        updates: how often it was reported.
    """

    def __init__(self, worker: str) -> None:
        self.chief = False
        self.updates = 0
        self._worker = worker
        self._lock = threading.Lock()

    def update(self, shard: int, answer: Answer, updates_before: int | None = None) -> None:
        """Takes the status from an answer of shard 0, if it has one.

        With `updates_before`, the number of `updates` when the request was sent, the answer counts only if there was no
        update since, which may be newer: for requests made beside the worker's own.
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
