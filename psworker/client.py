"""A worker's side of the conversation: numbers, retries, and which message goes to which shard.

Three verbs, push, pull and take, and what they need around them. May import placement, messages and a transport;
knows no tape and no optimizer.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pswire.errors import NotJoined, ParamServerError, TimedOut, Unavailable, Zombie
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
    Place,
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
from psworker.transport import Call, Transport

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two tries; it doubles
LAST_TRY = 0.5  # seconds that a try has at least: enough to hear why there is no connection
GOOD_BYE = 2.0  # seconds that a server has to hear that a worker ends
SAY_EVERY = 5.0  # seconds between two lines that say whom a call waits for

A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, slots=True)
class Handle(Generic[A]):
    """Something that was asked for.

    Attributes:
        wait: waits for the answer; call it once.
    """

    wait: Callable[[], A]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message to a shard that is on its way since `began`."""

    shard: int
    message: Request
    began: float
    call: Call


class Client:
    """One worker's conversation with all shards. One thread speaks at a time, besides the heartbeat.

        client = Client(transport, "worker-0", timeout=60)
        client.join()
        client.register([Declaration(spec, value, optimizer)])
        handle = client.push([Gradient("W", version, g)], loss=0.3, pull=["W"])
        ...                                           # something useful, but no other message
        pushed = handle.wait()
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
        self._life = secrets.randbits(62) + 1
        self._process = os.getpid()
        self._sequence = 0
        self._global_step = 0
        self._closing = threading.Event()
        self._heartbeats: list[threading.Thread] = []

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return self._transport.shards

    def join(self) -> Joined:
        """Becomes a member of every shard, and keeps its leases by a heartbeat in the background."""
        shards = self._transport.shards
        joined = self._call(0, Join(self._worker, 0, 0, shards, self._life), Joined)
        self._sender = Sender(self._worker, joined.incarnation)
        for shard in range(1, shards):
            self._call(shard, Join(self._worker, joined.incarnation, shard, shards, self._life), Joined)
        if joined.lease < threading.TIMEOUT_MAX:
            for shard in range(shards):  # a thread each, so that one that does not answer costs no lease of another
                beat = threading.Thread(
                    target=self._beat, args=(shard, joined.lease / 3), name="psworker-heartbeat", daemon=True
                )
                self._heartbeats.append(beat)
                beat.start()
        return joined

    def register(self, declarations: Sequence[Declaration]) -> list[Value]:
        """Declares variables; returns the servers' values of them, in their order."""
        self._placement.add(declaration.spec for declaration in declarations)
        names = [declaration.spec.name for declaration in declarations]
        first, *others = self._placement.split((declaration.spec.name, declaration) for declaration in declarations)
        places = tuple(Place(name, self._placement[name]) for name in names) if others else ()
        answers = [self._call(0, Register(self._sender, tuple(first), places), Registered)]
        sent = self._send(None, *(Register(self._sender, tuple(part)) if part else None for part in others))
        return _in_order(names, answers + self._results(sent, Registered))

    def push(
        self, gradients: Sequence[Gradient], loss: float | None = None, pull: Sequence[str] = ()
    ) -> Handle[Pushed]:
        """Pushes the gradients of one step; the answer has the values of `pull`, in their order.

        Every shard gets a push of each step, if need be an empty one, so that all of them count the same steps.
        `staleness` is the largest over the shards, `global_step` and what became of it are shard 0's.
        The gradients' arrays are borrowed until the answer is there; say nothing else before.
        """
        self._sequence += 1
        gradient_parts = self._placement.split((gradient.name, gradient) for gradient in gradients)
        pull_parts = self._placement.split((name, name) for name in pull)
        parts = zip(gradient_parts, pull_parts, strict=True)
        sent = self._send(
            *(Push(self._sender, self._sequence, tuple(mine), loss, tuple(names)) for mine, names in parts)
        )
        return Handle(lambda: _joined(self._results(sent, Pushed), pull))

    def pull(self, names: Sequence[str]) -> list[Value]:
        """The values of `names`, in their order; those of one shard belong to one moment."""
        parts = self._placement.split((name, name) for name in names)
        sent = self._send(*(Pull(self._sender, tuple(part)) if part else None for part in parts))
        return _in_order(names, self._results(sent, Pulled))

    def assign(self, assignments: Sequence[Assignment], *, add: bool = False) -> None:
        """Sets variables, or adds to them, on every shard that has one of them."""
        self._sequence += 1
        parts = self._placement.split((assignment.name, assignment) for assignment in assignments)
        sender, sequence = self._sender, self._sequence
        self._results(
            self._send(*(Assign(sender, sequence, tuple(part), add) if part else None for part in parts)), Assigned
        )

    def take(self, queue: QueueSpec, finished: Finished | None, heard: int = 0) -> Taken:
        """The next block of a data queue; the shard answers within seconds, if need be with whom it waits for."""
        return self._call(0, Take(self._sender, queue, finished, heard), Taken)

    def give_back(self, queue: QueueSpec) -> None:
        """What this worker holds of a data queue is handed out again, if shard 0 can be reached at once.

        If not, that happens when the worker leaves, or its lease ends; raises nothing.
        """
        if self._closing.is_set():
            return  # it has left
        message = Take(self._sender, queue, give_back=True)
        try:
            self._transport.call(0, message, min(self._timeout, GOOD_BYE)).result()
        except ParamServerError as error:
            logger.info("worker %s could not give back what it holds of %s: %s", self._worker, queue.name, error)

    def leave(self) -> None:
        """Says good-bye to every shard, as far as it can be reached at once, and ends the heartbeat."""
        self._closing.set()
        for beat in self._heartbeats:
            beat.join()
        if not self._sender.incarnation or os.getpid() != self._process:
            return  # it never joined, or is a fork of the one that did
        for shard in range(self._transport.shards):
            try:
                self._transport.call(shard, Leave(self._sender), min(self._timeout, GOOD_BYE)).result()
            except (NotJoined, Zombie, Unavailable, TimedOut) as error:
                logger.info("worker %s left shard %d without an answer: %s", self._worker, shard, error)

    def close(self) -> None:
        """Ends the connections; no call is possible afterwards."""
        self._closing.set()
        self._transport.close()

    def _call(self, shard: int, message: Request, kind: type[A]) -> A:
        call = self._transport.call(shard, message, self._timeout)
        return self._result(_Sent(shard, message, time.monotonic(), call), kind)

    def _send(self, *messages: Request | None) -> list[_Sent]:
        """Sends each shard its message, if there is one for it."""
        now = time.monotonic()
        return [
            _Sent(shard, message, now, self._transport.call(shard, message, self._timeout))
            for shard, message in enumerate(messages)
            if message is not None
        ]

    def _results(self, sent: Iterable[_Sent], kind: type[A]) -> list[A]:
        """The answers. Returns or raises when none is open any more: a shard has one push of a worker at a time."""
        answers: list[A] = []
        failed: list[ParamServerError] = []
        for one in sent:
            try:
                answers.append(self._result(one, kind))
            except ParamServerError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return answers

    def _result(self, sent: _Sent, kind: type[A]) -> A:
        """The answer; the message is sent again while the server cannot be reached, for `timeout` seconds at most.

        Every request may be repeated: those that must not happen twice carry a sequence number.
        """
        call, pause, said = sent.call, FIRST_PAUSE, 0.0
        while True:
            try:
                answer = call.result()
            except ParamServerError as error:
                waited = time.monotonic() - sent.began
                if not error.retry and not self._joined_again(sent.shard, error):
                    raise
                if waited >= self._timeout or self._closing.is_set():
                    raise type(error)(f"gave up after {waited:.1f} s: {error}") from None
                if waited - said >= SAY_EVERY:
                    logger.warning("%s waits for shard %d, for %.0f s: %s", self._worker, sent.shard, waited, error)
                    said = waited
                self._closing.wait(min(pause, self._timeout - waited))
                pause = min(2 * pause, LONGEST_PAUSE)
                left = sent.began + self._timeout - time.monotonic()
                call = self._transport.call(sent.shard, sent.message, max(left, LAST_TRY))
                continue
            assert isinstance(answer, kind)
            if isinstance(answer, Pushed) and not sent.shard:
                self._global_step = answer.global_step
            return answer

    def _joined_again(self, shard: int, error: ParamServerError) -> bool:
        """Whether the message may be sent again, because its lease had ended and the same life goes on.

        That takes a long sleep, of this worker or of the server. The block that the worker holds was handed out again,
        and what it says of it counts for nothing.

        Raises:
            NotJoined: the server has lost its state.
            Zombie: another worker has taken the name.
        """
        if not isinstance(error, NotJoined) or not self._sender.incarnation or self._closing.is_set():
            return False
        logger.warning("%s joins shard %d again: %s", self._worker, shard, error)
        message = Join(self._worker, self._sender.incarnation, shard, self._transport.shards, self._life)
        try:
            joined = self._transport.call(shard, message, self._timeout).result()
        except (Unavailable, TimedOut):
            return True  # as good as when the message itself does not get through
        if not shard and isinstance(joined, Joined) and joined.global_step < self._global_step:
            raise NotJoined(
                f"shard 0 is at step {joined.global_step} and was at {self._global_step}: the server was started anew "
                "and has lost its state; start the job again"
            )
        return True

    def _beat(self, shard: int, every: float) -> None:
        """Renews a lease until the worker leaves, or is told that it is no member any more.

        Says when a server does not answer; one that cannot be reached is for the worker's own calls to complain about.
        """
        while not self._closing.wait(every):
            try:
                self._transport.call(shard, Renew(self._sender), every).result()
            except ParamServerError as error:
                level = logging.WARNING if isinstance(error, TimedOut) else logging.INFO
                logger.log(level, "%s: heartbeat to shard %d: %s", self._worker, shard, error)
                if not error.retry and not isinstance(error, NotJoined):  # it joins again with its next call
                    return


def _joined(answers: Sequence[Pushed], pull: Sequence[str]) -> Pushed:
    """What the shards say of the parts of one push, as one answer."""
    first = answers[0]
    if len(answers) == 1:
        return first
    staleness = max(answer.staleness for answer in answers)
    return Pushed(first.outcome, staleness, first.global_step, tuple(_in_order(pull, answers)), first.reason)


def _in_order(names: Iterable[str], answers: Iterable[Registered | Pulled | Pushed]) -> list[Value]:
    found = {value.name: value for answer in answers for value in answer.values}
    return [found[name] for name in names]
