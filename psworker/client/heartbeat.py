"""Heartbeats: messages that keep a worker's leases while it computes, one thread per shard."""

import logging
import threading
import time

from pswire.errors import NotJoined, ParamServerError, StateLost, TimedOut
from pswire.messages import Cut, Renewed
from psworker.client.retry import Calls

logger = logging.getLogger(__name__)


class Heartbeat:
    """Renews the leases of a worker on all shards, from `start` until its calls are `closing`.

    One thread per shard, so that a shard that does not answer does not endanger the leases on others. No retries: the
    next heartbeat follows soon. It also records why shards hold the worker's pushes, and shows a new cut to all shards
    at once, so that it completes although the worker does not push to each of them. From the answers of all shards it
    tells each which cut all have written.

    `idle_since` is the sequence number as of which the worker is idle, so that shard 0 does not wait for it; 0 while it
    is working. Written by the worker's thread; shard 0 ignores an outdated one.
    """

    def __init__(self, calls: Calls) -> None:
        self.idle_since = 0
        self._calls = calls
        self._policy = ""
        self._threads: list[threading.Thread] = []

    def start(self, lease: float, policy: str = "") -> None:
        """Starts the threads, for leases of `lease` seconds; no threads if leases never end.

        `policy` is the servers' consistency policy, with which its reasons to wait begin.
        """
        self._policy = policy
        if lease >= threading.TIMEOUT_MAX:
            return
        for shard in range(self._calls.transport.shards):
            thread = threading.Thread(target=self._run, args=(shard, lease / 3), name="psworker-heartbeat", daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """Waits until the threads have ended; set `closing` first."""
        for thread in self._threads:
            thread.join()

    def _run(self, shard: int, interval: float) -> None:
        """Renews a lease until the worker leaves or is no longer a member.

        A server that cannot be reached is no warning: the worker's own calls report it.
        """
        calls, member = self._calls, self._calls.membership
        worker, shown = member.sender.worker, 0
        logged = logging.NOTSET, ""  # the last reason for which the shard held a push, and its level
        while not member.cuts.wait(shown, interval, calls.closing):
            reports, resets = member.chief_reports, member.cuts.resets
            idle = 0 if shard else self.idle_since
            renewal = member.renewal(shard, idle, idle=bool(idle))
            shown = renewal.cut
            try:
                answer = calls.transport.call(shard, renewal, interval).result()
                if number := member.unreleased.get(shard):
                    calls.transport.call(shard, Cut(number, member.sender, release=True), interval).result()
                    member.unreleased.pop(shard, None)
            except ParamServerError as error:
                level = logging.WARNING if isinstance(error, TimedOut) else logging.INFO
                logger.log(level, "%s: heartbeat to shard %d: %s", worker, shard, error)
                member.hold_reasons.pop(shard, None)  # outdated: the shard may not even have the push
                if not error.retry and not isinstance(error, NotJoined | StateLost):  # the next call joins again
                    return
            else:
                assert isinstance(answer, Renewed)
                member.update_chief(shard, answer, reports)
                member.cuts.note(answer.cut, resets)
                if answer.push_held:
                    member.cuts.note_held_push(answer.cut, resets)
                member.written[shard] = resets, answer.written
                _, before = member.hold_reasons.get(shard, (0.0, ""))
                member.hold_reasons[shard] = time.monotonic(), answer.waiting_for
                reason = answer.waiting_for
                level = self._level(reason, before)
                if level and (reason != logged[1] or level > logged[0]):
                    logger.log(level, "%s waits, shard %d: %s", worker, shard, reason)
                logged = level, reason

    def _level(self, reason: str, before: str) -> int:
        """The level at which a reason to wait is logged: 0 for none.

        Under a policy that lets workers wait it is INFO, unless nothing has changed since the last heartbeat.
        """
        if not reason:
            return logging.NOTSET
        return logging.INFO if reason.startswith(f"{self._policy}:") and reason != before else logging.WARNING
