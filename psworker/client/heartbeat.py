"""The heartbeat of a worker: renews its leases in the background, and hears whom a held push waits for.

A thread for each shard, so that one that does not answer costs no lease of another. Tries nothing again: the next beat
does. May import messages, the role and a transport.
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

    `_lock` guards `_held`: the heartbeats' threads write it, the worker's own reads it.

    Args:
        transport: reaches the shards.
        closing: ends the heartbeat.
        role: hears each answer.

    Attributes:
        idle_since: the sequence number of a message of the worker after which it has left its loop, and nobody shall
            wait for it; 0 while it is at work. The worker's thread writes it; shard 0 ignores an old one.
        half_pushes: what the worker counts for a shard (`Renew.half_pushes`).
    """

    def __init__(self, transport: Transport, closing: threading.Event, role: ChiefStatus) -> None:
        self.idle_since = 0
        self.half_pushes: Callable[[int], int] = lambda shard: 0
        self._transport = transport
        self._closing = closing
        self._role = role
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._held: dict[int, tuple[float, str]] = {}  # when each shard was last heard of, and what it said

    def start(self, sender: Sender, lease: float) -> None:
        """Begins, for a sender whose leases run for `lease` seconds; where leases never end there is nothing to do."""
        if lease >= threading.TIMEOUT_MAX:
            return
        for shard in range(self._transport.shards):
            beat = threading.Thread(
                target=self._beat, args=(shard, sender, lease / 3), name="psworker-heartbeat", daemon=True
            )
            self._threads.append(beat)
            beat.start()

    def join(self) -> None:
        """Waits until the threads have ended; set `closing` first."""
        for beat in self._threads:
            beat.join()

    def held_for(self, shard: int, since: float) -> str:
        """Whom a push waits for that a shard holds, as it said last; empty if that was before `since` (monotonic)."""
        with self._lock:
            heard, reason = self._held.get(shard, (since, ""))
        return reason if heard >= since else ""

    def _beat(self, shard: int, sender: Sender, every: float) -> None:
        """Renews a lease until the worker leaves, or is told that it is no member any more.

        Says when a server does not answer; one that cannot be reached is for the worker's own calls to complain about.
        """
        while not self._closing.wait(every):
            asked = self._role.heard
            idle = 0 if shard else self.idle_since
            tensor_transport, half = self._transport.tensor_transport(shard), self.half_pushes(shard)
            try:
                renew = Renew(sender, bool(idle), tensor_transport, idle, half)
                answer = self._transport.call(shard, renew, every).result()
            except ParamServerError as error:
                level = logging.WARNING if isinstance(error, TimedOut) else logging.INFO
                logger.log(level, "%s: heartbeat to shard %d: %s", sender.worker, shard, error)
                self._forget(shard)
                if not error.retry and not isinstance(error, NotJoined):  # it joins again with its next call
                    return
            else:
                assert isinstance(answer, Renewed)
                self._role.hear(shard, answer, asked)
                self._hear(sender.worker, shard, answer.waiting_for)

    def _forget(self, shard: int) -> None:
        """What it said before may hold no more: the shard may not even have the push."""
        with self._lock:
            self._held.pop(shard, None)

    def _hear(self, worker: str, shard: int, reason: str) -> None:
        with self._lock:
            _, before = self._held.get(shard, (0.0, ""))
            self._held[shard] = time.monotonic(), reason
        if reason and reason != before:
            logger.warning("%s waits, shard %d: %s", worker, shard, reason)
