"""The heartbeat of a worker: renews its leases in the background and keeps the reasons why shards hold its pushes.

One thread a shard, so that a shard that does not answer costs no lease on another. No retries: the next beat comes
soon. May import messages, the chief status and a transport.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pswire.errors import NotJoined, ParamServerError, TimedOut
from pswire.messages import Renew, Renewed, Sender
from psworker.client.chief import ChiefStatus
from psworker.transport import Transport

logger = logging.getLogger(__name__)


class Heartbeat:
    """Renews the leases of one worker on all shards, from `start` until `closing` is set.

    `_lock` guards `_reasons`: heartbeat threads write it, the worker's thread reads it.

    Attributes:
        idle_since: the sequence number as of which the worker is idle, so that shard 0 does not wait for it; 0 while
            it is working. Written by the worker's thread; shard 0 ignores an outdated one.
        half_pushes: the worker's count for a shard (`Renew.half_pushes`).
    """

    def __init__(self, transport: Transport, closing: threading.Event, chief_status: ChiefStatus) -> None:
        self.idle_since = 0
        self.half_pushes: Callable[[int], int] = lambda shard: 0
        self._transport = transport
        self._closing = closing
        self._chief_status = chief_status
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._reasons: dict[int, tuple[float, str]] = {}  # by shard: time of its last answer, and the reason in it

    def start(self, sender: Sender, lease: float) -> None:
        """Starts the threads, for leases of `lease` seconds; none where leases never end."""
        if lease >= threading.TIMEOUT_MAX:
            return
        for shard in range(self._transport.shards):
            thread = threading.Thread(
                target=self._run, args=(shard, sender, lease / 3), name="psworker-heartbeat", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """Waits until the threads have ended; set `closing` first."""
        for thread in self._threads:
            thread.join()

    def hold_reason(self, shard: int, since: float) -> str:
        """Why a shard holds a push, as of its last answer; empty if that came before `since` (monotonic)."""
        with self._lock:
            answered, reason = self._reasons.get(shard, (since, ""))
        return reason if answered >= since else ""

    def _run(self, shard: int, sender: Sender, interval: float) -> None:
        """Renews a lease until the worker leaves or is no member any more.

        A server that cannot be reached is no warning: the worker's own calls report it.
        """
        while not self._closing.wait(interval):
            updates = self._chief_status.updates
            idle = 0 if shard else self.idle_since
            tensor_transport, half = self._transport.tensor_transport(shard), self.half_pushes(shard)
            try:
                renew = Renew(sender, bool(idle), tensor_transport, idle, half)
                answer = self._transport.call(shard, renew, interval).result()
            except ParamServerError as error:
                level = logging.WARNING if isinstance(error, TimedOut) else logging.INFO
                logger.log(level, "%s: heartbeat to shard %d: %s", sender.worker, shard, error)
                with self._lock:
                    self._reasons.pop(shard, None)  # outdated: the shard may not even have the push
                if not error.retry and not isinstance(error, NotJoined):  # the next call joins again
                    return
            else:
                assert isinstance(answer, Renewed)
                self._chief_status.update(shard, answer, updates)
                reason = answer.waiting_for
                with self._lock:
                    _, before = self._reasons.get(shard, (0.0, ""))
                    self._reasons[shard] = time.monotonic(), reason
                if reason and reason != before:
                    logger.warning("%s waits, shard %d: %s", sender.worker, shard, reason)
