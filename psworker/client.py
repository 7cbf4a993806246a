"""A worker's side of the conversation: numbers, retries, and which message goes to which shard.

Three verbs, push, pull and take, and what they need around them. May import placement, messages and a transport;
knows no tape and no optimizer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from pswire.errors import NotJoined, ParamServerError, TimedOut, Unavailable
from pswire.messages import (
    Answer,
    Assign,
    Assigned,
    Assignment,
    Declaration,
    Finished,
    Gradient,
    Join,
    Joined,
    Leave,
    Pull,
    Pulled,
    Push,
    Pushed,
    QueueSpec,
    Register,
    Registered,
    Renew,
    Request,
    Sender,
    Take,
    Taken,
    Value,
)
from psworker.placement import Placement
from psworker.transport import Transport

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two tries; it doubles
LAST_TRY = 0.5  # seconds that a try has at least: enough to hear why there is no connection
SAY_EVERY = 5.0  # seconds between two lines that say whom a call waits for

A = TypeVar("A", bound=Answer)


class Client:
    """One worker's conversation with all shards. One thread speaks at a time, besides the heartbeat.

        client = Client(transport, "worker-0", timeout=60)
        client.join()
        client.register([Declaration(spec, value, optimizer)])
        pushed = client.push([Gradient("W", version, g)], loss=0.3, pull=["W"])
        client.leave()

    Args:
        transport: reaches the shards.
        worker: the worker's name.
        timeout: seconds that each call goes on trying while a server cannot be reached.

    Every method raises the server's error as it is, or `Unavailable` or `TimedOut` after `timeout` seconds.
    """

    def __init__(self, transport: Transport, worker: str, timeout: float) -> None:
        self._transport = transport
        self._worker = worker
        self._timeout = timeout
        self._placement = Placement(transport.shards)
        self._sender = Sender(worker, 0)
        self._sequence = 0
        self._closing = threading.Event()
        self._heartbeat: threading.Thread | None = None
        self._pool = ThreadPoolExecutor(transport.shards - 1, "psworker") if transport.shards > 1 else None

    def join(self) -> Joined:
        """Becomes a member of every shard, and keeps its leases by a heartbeat in the background."""
        shards = self._transport.shards
        joined = self._call(0, Join(self._worker, 0, 0, shards), Joined)
        self._sender = Sender(self._worker, joined.incarnation)
        for shard in range(1, shards):
            self._call(shard, Join(self._worker, joined.incarnation, shard, shards), Joined)
        if joined.lease < threading.TIMEOUT_MAX:
            self._heartbeat = threading.Thread(
                target=self._beat, args=(joined.lease / 3,), name="psworker-heartbeat", daemon=True
            )
            self._heartbeat.start()
        return joined

    def register(self, declarations: Sequence[Declaration]) -> list[Value]:
        """Declares variables; returns the servers' values of them, in their order."""
        self._placement.add(declaration.spec for declaration in declarations)
        parts = self._placement.split((declaration.spec.name, declaration) for declaration in declarations)
        answers = self._each((Register(self._sender, tuple(part)) if part else None for part in parts), Registered)
        return _in_order((declaration.spec.name for declaration in declarations), answers)

    def push(self, gradients: Sequence[Gradient], loss: float | None = None, pull: Sequence[str] = ()) -> Pushed:
        """Pushes the gradients of one step; the answer has the values of `pull`, in their order.

        Every shard gets a push of each step, if need be an empty one, so that all of them count the same steps.
        `staleness` is the largest over the shards, `global_step` and what became of it are shard 0's.
        """
        self._sequence += 1
        gradient_parts = self._placement.split((gradient.name, gradient) for gradient in gradients)
        pull_parts = self._placement.split((name, name) for name in pull)
        parts = zip(gradient_parts, pull_parts, strict=True)
        answers = self._each(
            (Push(self._sender, self._sequence, tuple(mine), loss, tuple(names)) for mine, names in parts), Pushed
        )
        if len(answers) == 1:
            return answers[0]
        first = answers[0]
        staleness = max(answer.staleness for answer in answers)
        return Pushed(first.outcome, staleness, first.global_step, tuple(_in_order(pull, answers)), first.reason)

    def pull(self, names: Sequence[str]) -> list[Value]:
        """The values of `names`, in their order; those of one shard belong to one moment."""
        parts = self._placement.split((name, name) for name in names)
        return _in_order(names, self._each((Pull(self._sender, tuple(p)) if p else None for p in parts), Pulled))

    def assign(self, assignments: Sequence[Assignment], *, add: bool = False) -> None:
        """Sets variables, or adds to them, on every shard that has one of them."""
        self._sequence += 1
        parts = self._placement.split((assignment.name, assignment) for assignment in assignments)
        sender, sequence = self._sender, self._sequence
        self._each((Assign(sender, sequence, tuple(part), add) if part else None for part in parts), Assigned)

    def take(self, queue: QueueSpec, finished: Finished | None, heard: int = 0) -> Taken:
        """The next block of a data queue; the shard answers within seconds, if need be with whom it waits for."""
        return self._call(0, Take(self._sender, queue, finished, heard), Taken)

    def leave(self) -> None:
        """Says good-bye to every shard, as far as it can be reached at once, and ends the heartbeat."""
        self._closing.set()
        if self._heartbeat is not None:
            self._heartbeat.join()
        for shard in range(self._transport.shards):
            try:
                self._transport.call(shard, Leave(self._sender), min(self._timeout, 5.0))
            except (NotJoined, Unavailable, TimedOut) as error:
                logger.info("worker %s left shard %d without an answer: %s", self._worker, shard, error)

    def close(self) -> None:
        """Ends connections and threads; no call is possible afterwards."""
        self._closing.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._transport.close()

    def _each(self, messages: Iterable[Request | None], kind: type[A]) -> list[A]:
        """Sends each shard its message, all at once; the answers of those that had one.

        Returns or raises when no call is under way any more: a shard has one push of a worker at a time.
        """
        calls = [(shard, message) for shard, message in enumerate(messages) if message is not None]
        if self._pool is None:
            return [self._call(shard, message, kind) for shard, message in calls]
        futures = [self._pool.submit(self._call, shard, message, kind) for shard, message in calls[1:]]
        try:
            first = [self._call(shard, message, kind) for shard, message in calls[:1]]
        finally:
            wait(futures)
        return first + [future.result() for future in futures]

    def _call(self, shard: int, message: Request, kind: type[A]) -> A:
        """One call, tried again while a server cannot be reached, for `timeout` seconds at most.

        Every request may be repeated: those that must not happen twice carry a sequence number.
        """
        began = time.monotonic()
        pause, said, waited = FIRST_PAUSE, 0.0, 0.0
        while True:
            try:
                answer = self._transport.call(shard, message, max(self._timeout - waited, LAST_TRY))
            except ParamServerError as error:
                waited = time.monotonic() - began
                if not error.retry:
                    raise
                if waited >= self._timeout or self._closing.is_set():
                    raise type(error)(f"gave up after {waited:.1f} s: {error}") from None
                if waited - said >= SAY_EVERY:
                    logger.warning("worker %s waits for shard %d, for %.0f s: %s", self._worker, shard, waited, error)
                    said = waited
                self._closing.wait(min(pause, self._timeout - waited))
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            assert isinstance(answer, kind)
            return answer

    def _beat(self, every: float) -> None:
        """Renews the leases until the worker leaves, or is told that it is no member any more.

        A server that cannot be reached is for the worker's own calls to complain about.
        """
        while not self._closing.wait(every):
            for shard in range(self._transport.shards):
                try:
                    self._transport.call(shard, Renew(self._sender), every)
                except ParamServerError as error:
                    logger.info("heartbeat of %s to shard %d: %s", self._worker, shard, error)
                    if not error.retry:
                        return


def _in_order(names: Iterable[str], answers: Iterable[Registered | Pulled | Pushed]) -> list[Value]:
    found = {value.name: value for answer in answers for value in answer.values}
    return [found[name] for name in names]
