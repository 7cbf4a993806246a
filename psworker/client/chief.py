"""Whether this worker is the chief, which does what is to be done once: what shard 0 said last.

That role moves when the chief dies or fails (`psserver.core.members.membership`). May import messages.
"""

from __future__ import annotations

import logging
import threading

from pswire.messages import Answer, Joined, Renewed, Taken

logger = logging.getLogger(__name__)

_TELLING = (Joined, Renewed, Taken)


class ChiefStatus:
    """What a worker knows of its role. The heartbeat's threads and the worker's own write it, under `_lock`.

    Args:
        worker: the worker's name, for the log.

    Attributes:
        chief: whether it is the chief.
        heard: how often it has heard of its role.
    """

    def __init__(self, worker: str) -> None:
        self.chief = False
        self.heard = 0
        self._worker = worker
        self._lock = threading.Lock()

    def hear(self, shard: int, answer: Answer, asked: int | None = None) -> None:
        """Takes the role from an answer of shard 0, if it tells one.

        With `asked`, what `heard` was when this was asked, it counts only if nothing was heard meanwhile, which may be
        newer: for who asks beside the worker's own calls, and is answered at once.
        """
        if shard or not isinstance(answer, _TELLING):
            return
        with self._lock:
            if asked is not None and asked != self.heard:
                return
            took_over = answer.chief and not self.chief and self.heard > 0
            self.chief = answer.chief
            self.heard += 1
        if took_over:
            logger.warning("%s is the chief from now on: the one before is gone", self._worker)
