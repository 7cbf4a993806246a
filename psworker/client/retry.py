"""RPCs with retry, rejoin and progress logging: each message is sent until it is answered or times out.

Independent of variables.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TypeVar

from pswire import messages as ms
from pswire.errors import NotJoined, ParamServerError, StateLost, TimedOut, Unavailable, Zombie
from pswire.system.interrupts import cut_short, deferred_signals, deferred_to_next_block
from psworker.client.membership import WorkerMembership
from psworker.transport import BegunCall, Future, Transport

logger = logging.getLogger(__name__)

#: Seconds between two tries, doubled each time. A server that was killed is back in a second: the longest is shorter.
INITIAL_BACKOFF, MAX_BACKOFF = 0.05, 0.5
MIN_TRY_SECONDS = 0.5  # seconds that each try has at least: enough to learn why there is no connection
#: Seconds of a try below which its end without an answer says less than an error of an earlier try.
SHORT_TRY = 2.0
#: Seconds between two log lines of a call that waits: the first and shortest, doubled each time, and the longest.
LOG_EVERY, MAX_LOG_EVERY = 5.0, 60.0
#: Seconds to the first line of a worker that has not joined: its user may have named the wrong servers.
LOG_BEFORE_JOIN = 1.0
BEST_EFFORT_SECONDS = 2.0  # for messages the worker does not depend on: that it leaves, is idle, abandons a push

A = TypeVar("A", bound=ms.Answer)


class Wait:
    """The pauses between the tries of one wait, each twice as long as the one before, until its `timeout`.

    It ends early when `closing` is set. With a `text`, such as "w0 waits for shard 1", lines are logged, the first of
    them after `log_after` seconds. `pauses` are the first one and the longest.

    Attributes:
        waited: seconds since it `began` (monotonic), as of the last `is_over`.
    """

    def __init__(
        self,
        closing: threading.Event,
        timeout: float,
        text: str = "",
        began: float | None = None,
        pauses: tuple[float, float] | None = None,
        log_after: float | None = None,
    ) -> None:
        self._closing, self._timeout, self._text = closing, timeout, text
        self._began = time.monotonic() if began is None else began
        self._pauses = pauses or (INITIAL_BACKOFF, MAX_BACKOFF)
        self.waited, self._next_line = 0.0, LOG_EVERY if log_after is None else log_after
        self.restart()

    def restart(self) -> None:
        """Begins with short pauses again, within the same time."""
        self._pause = self._pauses[0]

    def is_over(self) -> bool:
        """True once the time has passed, or the client is closing."""
        self.waited = time.monotonic() - self._began
        return self.waited >= self._timeout or self._closing.is_set()

    def pause(self, reason: object) -> None:
        """Pauses after an `is_over`; `reason` is for the log."""
        if self._text and self.waited >= self._next_line:
            logger.warning("%s, for %.0f s: %s", self._text, self.waited, reason)
            self._next_line = max(LOG_EVERY, self.waited + min(self.waited, MAX_LOG_EVERY))
        self._closing.wait(min(self._pause, self._timeout - self.waited))
        self._pause = min(2 * self._pause, self._pauses[1])


class Calls:
    """The RPCs of one worker. Used by one thread, or one at a time, and by its heartbeats.

    Each is retried for `timeout` seconds while a server cannot be reached, unless `closing` is set. Answers update the
    `membership`.
    """

    def __init__(
        self, transport: Transport, membership: WorkerMembership, timeout: float, closing: threading.Event
    ) -> None:
        self.transport, self.membership, self.closing = transport, membership, closing
        self._timeout = timeout

    def call(self, shard: int, message: ms.Request, kind: type[A], timeout: float | None = None) -> A:
        """Sends one message; its answer."""
        (answer,) = self.results(self.send({shard: message}, timeout=timeout), kind)
        return answer

    def send(
        self,
        messages: Mapping[int, ms.Request],
        rejoins: int | None = None,
        timeout: float | None = None,
        begun: Mapping[int, BegunCall] | None = None,
    ) -> dict[int, Future[ms.Answer]]:
        """Sends each shard its message, or finishes the first try that is `begun`; the answers by shard.

        `rejoins` belongs to the versions in the messages, by default the present one; `timeout` overrides the default.
        """
        member = self.membership
        seconds = max(self._timeout, MIN_TRY_SECONDS) if timeout is None else timeout
        as_of = member.rejoins if rejoins is None else rejoins
        sent: dict[int, Future[ms.Answer]] = {}
        with deferred_to_next_block:
            for shard, message in messages.items():
                began = time.monotonic()
                current = message if as_of == member.rejoins else member.current(message, as_of)
                if begun and shard in begun:
                    first = begun[shard].finish(seconds)
                else:
                    first = self.transport.call(shard, current, seconds)
                sent[shard] = Future(partial(self._answer, shard, message, as_of, began, seconds, first))
        return sent

    def results(
        self,
        sent: Mapping[int, Future[ms.Answer]],
        kind: type[A] | tuple[type[A], ...],
        failed: list[int] | None = None,
    ) -> list[A]:
        """The answers, each of a `kind`, once no call is open: a shard has one push of a worker at a time.

        The shards that have not answered are added to `failed`.
        """
        answers: list[A] = []
        errors: dict[int, ParamServerError] = {}
        with deferred_signals:
            for shard, future in sent.items():
                try:
                    answer = future.result()
                    assert isinstance(answer, kind)
                    answers.append(answer)
                except ParamServerError as error:
                    errors[shard] = error
            if failed is not None:
                failed += errors
        if errors:
            first, *others = errors.values()
            raise next((error for error in others if isinstance(error, StateLost)), first)  # it can be mended
        return answers

    def call_best_effort(self, shard: int, message: ms.Request, failure: str) -> ms.Answer | None:
        """Sends a message that the worker does not depend on, again for a while if the shard cannot be reached.

        Errors are logged as `failure`.
        """
        left, pause = min(self._timeout, BEST_EFFORT_SECONDS), INITIAL_BACKOFF
        until = time.monotonic() + left
        while True:
            try:
                with deferred_to_next_block:
                    return self.transport.call(shard, message, left).result()
            except ParamServerError as error:
                left = until - time.monotonic() - pause
                if isinstance(error, Unavailable) and left > 0:
                    time.sleep(pause)  # not `closing.wait`: it is set when the worker leaves
                    pause = min(2 * pause, MAX_BACKOFF)
                    continue
                expected = isinstance(error, NotJoined | StateLost | Zombie | Unavailable | TimedOut)
                level = logging.INFO if expected else logging.WARNING
                worker = self.membership.sender.worker
                logger.log(level, "worker %s, shard %d: %s: %s", worker, shard, failure, error)
                return None

    def abandon(self, shards: Iterable[int], sequence: int) -> None:
        """Reports to these shards that messages up to `sequence` are abandoned, so that no other worker waits."""
        member = self.membership
        for shard in shards:
            failure = "could not report that it abandoned a push"
            if self.closing.is_set() or self.call_best_effort(shard, member.renewal(shard, sequence), failure) is None:
                member.abandoned[shard] = sequence

    def report_abandoned(self) -> None:
        """Repeats failed reports of `abandon`; call before the next change, which implies them."""
        member = self.membership
        for shard, sequence in list(member.abandoned.items()):
            self.call(shard, member.renewal(shard, sequence), ms.Renewed)
            del member.abandoned[shard]

    def _answer(
        self,
        shard: int,
        message: ms.Request,
        rejoins: int,
        began: float,
        timeout: float,
        future: Future[ms.Answer],
    ) -> ms.Answer:
        """The answer; the message is sent again while the server cannot be reached, for `timeout` seconds at most.

        Every request may be retried: a change carries a sequence number, by which it is applied once.
        """
        member, wait = self.membership, None
        tried, earlier = timeout, None  # seconds of this try; the last error of one that was not just too short
        while True:
            try:
                answer = future.result()
                break
            except ParamServerError as error:
                if wait is None:
                    log_after = None if member.sender.incarnation else LOG_BEFORE_JOIN
                    text = f"{member.sender.worker} waits for shard {shard}"
                    wait = Wait(self.closing, timeout, text, began, log_after=log_after)
                over = wait.is_over()
                if not error.retry and not self._joined_again(shard, error):
                    raise
                if over:
                    shown = earlier if earlier and isinstance(error, TimedOut) and tried < SHORT_TRY else error
                    held = self._hold_reason(shard, message, began)
                    raise type(shown)(f"gave up after {wait.waited:.1f} s: {shown}{held}") from None
                wait.pause(error)
                if cut_short():
                    raise  # the exception of the signal comes when the calls to other shards have ended
                earlier = earlier if isinstance(error, TimedOut) else error
                tried = max(began + timeout - time.monotonic(), MIN_TRY_SECONDS)
                future = self.transport.call(shard, member.current(message, rejoins), tried)
        member.note(shard, answer)
        return answer

    def _hold_reason(self, shard: int, message: ms.Request, began: float) -> str:
        """The reason for which the shard holds a message, as reported since it `began`; "": none."""
        answered, reason = self.membership.hold_reasons.get(shard, (began, ""))
        if not reason or answered < began:
            return ""
        return f": shard {shard} {'held the push' if isinstance(message, ms.Push) else 'waits'}: {reason}"

    def _joined_again(self, shard: int, error: ParamServerError) -> bool:
        """Rejoins a shard if the worker's lease there had ended; returns whether the message may be sent again.

        By then the worker's block of examples has been handed out again, and its result is discarded. Raises
        `StateLost` if the shard went back to an older state, or has to, `WrongShard` if it has lost all state, and
        `Zombie` if another worker has joined with this name.
        """
        member = self.membership
        if not isinstance(error, NotJoined) or not member.sender.incarnation or self.closing.is_set():
            return False
        logger.warning("%s joins shard %d again: %s", member.sender.worker, shard, error)
        member.rejoins += 1  # counted before the answer, which may not arrive
        try:
            joined = self.transport.call(shard, member.join_message(shard), self._timeout).result()
        except (Unavailable, TimedOut):
            return True  # as if the message itself had not arrived
        assert isinstance(joined, ms.Joined)
        member.check_timeline(shard, joined, member.timeline)
        member.cuts.note(joined.cut)
        member.update_chief(shard, joined)
        return True
