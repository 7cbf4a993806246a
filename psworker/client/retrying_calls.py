"""Calls to shards that go on until there is an answer: a worker's membership, retries, and what is said while it waits.

Knows which shard, but not what belongs there: that is the client's. May import messages, the role, interrupts and
a transport.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from pswire.errors import NotJoined, ParamServerError, TimedOut, Unavailable, Zombie
from pswire.messages import (
    Answer,
    Assign,
    Assigned,
    ChangeId,
    Frontier,
    Join,
    Joined,
    Pull,
    Pulled,
    Push,
    Pushed,
    Registered,
    Renew,
    Renewed,
    Request,
    Sender,
)
from pswire.system.deferred_signals import deferred_signals, deferred_to_next_block, raise_deferred
from psworker.client.chief import ChiefStatus
from psworker.transport import Future, Transport

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two tries; it doubles
LAST_TRY = 0.5  # seconds that a try has at least: enough to hear why there is no connection
SAY_EVERY = 5.0  # seconds between two lines that say whom a call waits for
GOOD_BYE = 2.0  # seconds that a server has to hear that a worker ends, or has nothing to do

_WITH_FRONTIER = (Registered, Pulled, Pushed, Assigned)

A = TypeVar("A", bound=Answer)
T = TypeVar("T")
M = TypeVar("M", Assign | None, Pull | None, Push | Pull | None)  # what has an order over shards


@dataclass(frozen=True, slots=True)
class Handle(Generic[T]):
    """Something that was asked for.

    Attributes:
        wait: waits for the answer; call it once.
    """

    wait: Callable[[], T]


@dataclass(frozen=True, slots=True)
class Sent:
    """A message to a shard that is on its way since `began`; what it says the worker has is as of `rejoins`."""

    shard: int
    message: Request
    began: float
    call: Future[Answer]
    rejoins: int


class RetryingCalls:
    """What one worker says to its shards, each message until it is answered. One thread speaks at a time.

    Args:
        transport: reaches the shards.
        worker: the worker's name.
        timeout: seconds that each call goes on trying while a server cannot be reached.
        closing: when it is set, no call is tried again.
        held_for: whom a push waits for that a shard holds, as far as it is known since a moment (monotonic).
        role: hears each answer.

    Attributes:
        sender: the worker, as a member; with incarnation 0 until it has joined.
        states: those of the shards as it met them (`Joined.state`); none until it has joined all.
        rejoins: how often it has joined a shard again, whose lease had ended or which was started anew: then it is not
            known whether versions that came before count the same changes, and no message is sent that names them.
        global_step: that of shard 0, as its last answer said.
        frontier: what shard 0 had decided, as its last answer said, where it orders changes (`pswire.messages.order`).
        half_pushes: by shard, pushes that it has not applied, and others have; of several such shards the first counts.
    """

    def __init__(
        self,
        transport: Transport,
        worker: str,
        timeout: float,
        closing: threading.Event,
        held_for: Callable[[int, float], str],
        role: ChiefStatus,
    ) -> None:
        self.sender = Sender(worker, 0)
        self.states: tuple[int, ...] = ()
        self.rejoins = self.global_step = 0
        self.half_pushes: Counter[int] = Counter()
        self.frontier = Frontier(0)
        self._unsettled: dict[int, int] = {}
        self._transport = transport
        self._timeout = timeout
        self._closing = closing
        self._held_for = held_for
        self._role = role
        self._life = secrets.randbits(62) + 1

    def join(self) -> list[Joined]:
        """Makes the worker a member of every shard, of shard 0 first; their answers."""
        first = self.call(0, self._join(0), Joined)
        self.sender = Sender(self.sender.worker, first.incarnation)
        others = range(1, self._transport.shards)
        answers = [first, *(self.call(shard, self._join(shard), Joined) for shard in others)]
        self.states = tuple([joined.state for joined in answers])
        return answers

    def call(self, shard: int, message: Request, kind: type[A]) -> A:
        """The answer to one message."""
        with deferred_signals:
            return self._result(self._send(shard, message, self.rejoins), kind)

    def send(self, messages: Iterable[Request | None], rejoins: int | None = None) -> list[Sent]:
        """Sends each shard its message, from shard 0 on, if there is one for it.

        The versions that are named in them are as of `rejoins`; None: of now.
        """
        as_of = self.rejoins if rejoins is None else rejoins
        with deferred_to_next_block:
            return [self._send(shard, message, as_of) for shard, message in enumerate(messages) if message is not None]

    def results(
        self, sent: Iterable[Sent], kind: type[A] | tuple[type[A], ...], failed: list[int] | None = None
    ) -> list[A]:
        """The answers, each of a `kind`.

        Returns or raises when none is open any more: a shard has one push of a worker at a time. The shards that have
        not answered are added to `failed`.
        """
        answers: list[A] = []
        errors: dict[int, ParamServerError] = {}
        with deferred_signals:
            for one in sent:
                try:
                    answers.append(self._result(one, kind))
                except ParamServerError as error:
                    errors[one.shard] = error
            if failed is not None:
                failed += errors
        if errors:
            raise next(iter(errors.values()))
        return answers

    def say(self, shard: int, message: Request, failed: str) -> Answer | None:
        """Says something to a shard that has `GOOD_BYE` seconds to answer; what goes wrong is logged.

        Says it again meanwhile if the shard cannot be reached: a network that fails for a moment shall not make this
        worker one that was lost. What the answer says of its role is not heard: who gives back its work is about to
        end.
        """
        left, pause = min(self._timeout, GOOD_BYE), FIRST_PAUSE
        until = time.monotonic() + left
        while True:
            try:
                with deferred_to_next_block:
                    return self._transport.call(shard, message, left).result()
            except ParamServerError as error:
                left = until - time.monotonic() - pause
                if isinstance(error, Unavailable) and left > 0:
                    time.sleep(pause)  # not `_closing.wait`, which is set at the good-bye
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                expected = isinstance(error, NotJoined | Zombie | Unavailable | TimedOut)
                level = logging.INFO if expected else logging.WARNING
                logger.log(level, "worker %s, shard %d: %s: %s", self.sender.worker, shard, failed, error)
                return None

    def rest(self, sequence: int) -> None:
        """Tells shard 0 that nobody shall wait for this worker, whose messages up to `sequence` are over."""
        if not self._closing.is_set():
            idle = self._settling(0, sequence, idle=True)
            answer = self.say(0, idle, "could not say that it has nothing to do")
            if answer is not None:
                self._role.hear(0, answer)

    def settle(self, shards: Iterable[int], sequence: int) -> None:
        """Tells these shards that messages up to `sequence` are given up, so that no other worker waits for them."""
        for shard in shards:
            renew = self._settling(shard, sequence)
            if self._closing.is_set() or self.say(shard, renew, "could not say that it gave up a push") is None:
                self._unsettled[shard] = sequence

    def settle_all(self) -> None:
        """Makes up for what `settle` could not say; call before the next change, which implies that it was said."""
        for shard, sequence in list(self._unsettled.items()):
            self.call(shard, self._settling(shard, sequence), Renewed)
            del self._unsettled[shard]

    def _settling(self, shard: int, sequence: int, *, idle: bool = False) -> Renew:
        tensor_transport, half = self._transport.tensor_transport(shard), self.half_pushes[shard]
        return Renew(self.sender, idle, tensor_transport, sequence, half)

    def after(self) -> list[tuple[ChangeId, ...]]:
        """By shard, the changes of other workers that must be made there before what shard 0 has decided last."""
        worker, undelivered = self.sender.worker, self.frontier.undelivered
        others = [delivery for delivery in undelivered if delivery.sender.worker != worker]
        return [
            tuple([ChangeId(one.sender, one.sequence) for one in others if shard in one.shards])
            for shard in range(self._transport.shards)
        ]

    def in_order(self, messages: Sequence[M]) -> list[M | None]:
        """Of a message for each shard those to the other shards, which come after what shard 0 has decided last."""
        _, *others = zip(messages, self.after(), strict=True)
        return [None, *[None if message is None else replace(message, after=after) for message, after in others]]

    def note_half_push(self, shards: Sequence[int]) -> None:
        """Counts a push that these shards have not applied, and others have; the first of them will be told."""
        self.half_pushes[shards[0]] += 1
        self.warn_of_half_push(shards)

    def warn_of_half_push(self, shards: Sequence[int]) -> None:
        """Logs that these shards have not applied a push, and others have."""
        listed = ", ".join(map(str, shards))
        logger.warning("%s: a push was applied on some shards and not on shard %s", self.sender.worker, listed)

    def _join(self, shard: int) -> Join:
        worker, incarnation = self.sender.worker, self.sender.incarnation
        transport = self._transport
        return Join(
            worker, incarnation, shard, transport.shards, self._life, transport.tensor_transport(shard), self.states
        )

    def _send(self, shard: int, message: Request, rejoins: int) -> Sent:
        message = self._true(message, rejoins)
        return Sent(shard, message, time.monotonic(), self._transport.call(shard, message, self._timeout), rejoins)

    def _true(self, message: Request, rejoins: int) -> Request:
        """The message, without the versions that it names if the worker has joined a shard again since then."""
        if rejoins == self.rejoins or not isinstance(message, Push | Pull):
            return message
        return replace(message, known_versions=())

    def _result(self, sent: Sent, kind: type[A] | tuple[type[A], ...]) -> A:
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
                    raise type(error)(f"gave up after {waited:.1f} s: {error}{self._why(sent)}") from None
                if waited - said >= SAY_EVERY:
                    worker = self.sender.worker
                    logger.warning("%s waits for shard %d, for %.0f s: %s", worker, sent.shard, waited, error)
                    said = waited
                self._closing.wait(min(pause, self._timeout - waited))
                raise_deferred()
                pause = min(2 * pause, LONGEST_PAUSE)
                left = sent.began + self._timeout - time.monotonic()
                message = self._true(sent.message, sent.rejoins)
                call = self._transport.call(sent.shard, message, max(left, LAST_TRY))
                continue
            assert isinstance(answer, kind)
            self._note(sent.shard, answer)
            return answer

    def _note(self, shard: int, answer: Answer) -> None:
        self._role.hear(shard, answer)
        if shard == 0 and isinstance(answer, _WITH_FRONTIER):
            self.global_step = max(self.global_step, answer.global_step)
            self.frontier = answer.frontier or self.frontier

    def _why(self, sent: Sent) -> str:
        reason = self._held_for(sent.shard, sent.began)
        return f": shard {sent.shard} held the push: {reason}" if reason else ""

    def _joined_again(self, shard: int, error: ParamServerError) -> bool:
        """Whether the message may be sent again, because its lease had ended and the same life goes on.

        That takes a long sleep, of this worker or of the server. The block that the worker holds was handed out again,
        and what it says of it counts for nothing.

        Raises:
            WrongShard: a server has lost its state; this worker is no member there.
            Zombie: another worker has taken the name.
        """
        if not isinstance(error, NotJoined) or not self.sender.incarnation or self._closing.is_set():
            return False
        logger.warning("%s joins shard %d again: %s", self.sender.worker, shard, error)
        self.rejoins += 1  # before it is known whether it gets there, since it may and its answer be lost
        try:
            joined = self._transport.call(shard, self._join(shard), self._timeout).result()
        except (Unavailable, TimedOut):
            return True  # as good as when the message itself does not get through
        self._role.hear(shard, joined)
        return True
