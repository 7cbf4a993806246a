"""RPCs with retry, rejoin and progress logging: each message is sent until it is answered or times out.

Independent of variables.
"""

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from pswire import messages as ms
from pswire.errors import NotJoined, ParamServerError, SessionNotBegun, StateLost, TimedOut, Unavailable, Zombie
from pswire.system.signals import cut_short, deferred_signals, deferred_to_next_block
from psworker.client.cut_numbers import CutNumbers
from psworker.transport import Future, Transport

logger = logging.getLogger(__name__)

#: Seconds between two tries, doubled each time. A server that was killed is back in a second: the longest is shorter.
INITIAL_BACKOFF, MAX_BACKOFF = 0.05, 0.5
MIN_TRY_SECONDS = 0.5  # seconds that each try has at least: enough to learn why there is no connection
#: Seconds of a try below which its end without an answer says less than an error of an earlier try.
SHORT_TRY = 2.0
#: Seconds between two log lines of a call that waits: the first and shortest, doubled each time, and the longest.
LOG_EVERY, MAX_LOG_EVERY = 5.0, 60.0
BEST_EFFORT_SECONDS = 2.0  # for messages the worker does not depend on: that it leaves, is idle, abandons a push

#: The answers that have the number of the shard's last cut.
WITH_CUT = (ms.Pushed, ms.Taken, ms.Renewed, ms.Joined, ms.Evaluated, ms.PortionTaken)

#: `Join.name_key` of workers without one: their name is taken over at once by this process only.
PROCESS_KEY = secrets.token_bytes(32)

A = TypeVar("A", bound=ms.Answer)
M = TypeVar("M", ms.Assign, ms.Pull, ms.Push | ms.Pull)  # ordered over shards


@dataclass(frozen=True, slots=True)
class JobChoice:
    """The job that a worker is to take part in: as `Job.name`, and `Join.resume`, `program` and `workers` are."""

    name: str = ""
    resume: bool = False
    program: str = ""
    workers: int = 0


class RetryingCalls:
    """The RPCs of one worker. Used by one thread, and by its heartbeats.

    Each is retried for `timeout` seconds while a server cannot be reached, unless `closing` is set. `name_key` is as in
    `Join`.

    Attributes:
        sender: the worker as a member; with incarnation 0 until it has joined.
        job: in which it takes part; with number 0 until it has joined.
        stopped: why the job was stopped, as last reported by shard 0; "": it was not.
        states, proofs: of the shards when the worker joined them (`Joined.state`); () until it has joined all.
        rejoins: how often it has joined a shard again. Versions from before may count other updates, so no message is
            sent that names them.
        timeline: of the shards when the worker joined them (`Joined.timeline`).
        went_back: `rejoins` when the shards went back to a cut the last time; gradients of weights from before are not
            pushed.
        steps: by shard, the pushes that it has acknowledged as applied; after it went back, those that its cut has.
        global_step, frontier: of shard 0, as of its last answer with values; the step also as of the last barrier.
        half_pushes: by shard, pushes that it has not applied and others have; counted for the first such shard, if no
            shard counts it.
        half_applied: all pushes that some shards have applied, and others have not.
        chief, chief_reports: whether this worker is chief, as last reported by shard 0, and how often it has.
        hold_reasons: by shard, the time (monotonic) of its last answer to a heartbeat, and why it holds a push.
        unreleased: by shard, a cut that this worker holds no more, which a heartbeat is to report.
        abandoned: by shard, the sequence number up to which messages are abandoned and which it does not know of yet.
        cuts: the numbers of cuts that messages carry.
        written: by shard, the last answer to a heartbeat: `cuts.resets` from before it, and the cuts that are written.
    """

    def __init__(
        self,
        transport: Transport,
        worker: str,
        timeout: float,
        closing: threading.Event,
        choice: JobChoice = JobChoice(),
        name_key: bytes = b"",
    ) -> None:
        self.sender = ms.Sender(worker, 0)
        self.job, self._choice, self.stopped = ms.Job(name=choice.name), choice, ""
        self.states: tuple[int, ...] = ()
        self.proofs: tuple[bytes, ...] = ()
        self.rejoins = self.global_step = self.timeline = self.went_back = 0
        self.steps: Counter[int] = Counter()
        self.half_pushes: Counter[int] = Counter()
        self.half_applied = 0
        self.frontier = ms.Frontier(0)
        self.abandoned: dict[int, int] = {}
        self.unreleased: dict[int, int] = {}
        self.cuts = CutNumbers()
        self.chief, self.chief_reports = False, 0
        self._chief_lock = threading.Lock()
        self.hold_reasons: dict[int, tuple[float, str]] = {}
        self.written: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.transport, self.closing = transport, closing
        self._timeout = timeout
        self._process_nonce = secrets.randbits(62) + 1
        self._name_key = name_key or PROCESS_KEY
        self._reported: dict[int, str] = {}  # by shard, the tensor transport in the last Join

    def join(self, session: int, name: str) -> list[ms.Joined]:
        """Joins every shard, shard 0 first; their answers. `session` and `name` are as in `Client.join`.

        Waits while other workers take part in the job of an earlier session, which they leave, or lose by their lease.
        """
        self.job = ms.Job(name=self._choice.name or name, session=session)
        began, pause, next_line = time.monotonic(), INITIAL_BACKOFF, LOG_EVERY
        while True:
            try:
                answers = self._join_all(0)
                break
            except SessionNotBegun as error:
                waited = time.monotonic() - began
                if self.closing.is_set():
                    raise
                if waited >= next_line:
                    logger.warning(
                        "%s waits, for %.0f s: %s. A program beside the workers of a job, such as an evaluation, takes "
                        "part in the present one with ps.session(resume=True)",
                        self.sender.worker,
                        waited,
                        error,
                    )
                    next_line = waited + min(waited, MAX_LOG_EVERY)
                self.closing.wait(pause)
                pause = min(2 * pause, MAX_BACKOFF)
        self._note_states(answers)
        self.timeline, self.global_step = answers[0].timeline, answers[0].global_step
        return answers

    def join_again(self, timeline: int, cut: int, settled: int) -> list[ms.Joined]:
        """Joins every shard after all went back to a cut, with which `timeline` began; their answers.

        Messages up to `settled` are abandoned. Raises `StateLost` if a shard follows another timeline.
        """
        self.rejoins += 1
        self.cuts.reset(cut)  # the answers may have later ones; before `timeline`, as `renewal` reads them
        self.went_back, self.timeline = self.rejoins, timeline
        self.abandoned.clear()
        self.unreleased.clear()
        self.hold_reasons.clear()
        answers = self._join_all(settled)
        self._note_states(answers)
        # a push of which the answer is lost may be in the cut, and counts there when the shards go back again
        self.steps = Counter({shard: joined.steps for shard, joined in enumerate(answers)})
        self.frontier, self.global_step = ms.Frontier(0), answers[0].global_step
        return answers

    def _note_states(self, answers: Sequence[ms.Joined]) -> None:
        self.states = tuple([joined.state for joined in answers])
        self.proofs = tuple([joined.proof for joined in answers])

    def _join_all(self, settled: int) -> list[ms.Joined]:
        first = self.call(0, self._join(0, settled), ms.Joined)
        self.sender, self.job = ms.Sender(self.sender.worker, first.incarnation), first.job
        if first.note:
            logger.warning("%s: %s", self.sender.worker, first.note)
        others = [self.call(shard, self._join(shard, settled), ms.Joined) for shard in range(1, self.transport.shards)]
        for shard, joined in enumerate([first, *others]):
            self._check_timeline(shard, joined, self.timeline or first.timeline)
        return [first, *others]

    def report_tensor_transport(self) -> None:
        """Tells shards how tensors travel to them, for status displays, if `Join` did not: only a member can ask."""
        for shard in range(self.transport.shards):
            if self.transport.tensor_transport(shard) != self._reported.get(shard, ""):
                self.call_best_effort(shard, self.renewal(shard, 0), "could not report how tensors travel")

    def _check_timeline(self, shard: int, joined: ms.Joined, timeline: int) -> None:
        if joined.timeline != timeline:
            raise StateLost(f"shard {shard} follows timeline {joined.timeline} of the job, and others {timeline}")

    def call(self, shard: int, message: ms.Request, kind: type[A], timeout: float | None = None) -> A:
        """Sends one message; its answer."""
        (answer,) = self.results(self.send({shard: message}, timeout=timeout), kind)
        return answer

    def send(
        self, messages: Mapping[int, ms.Request], rejoins: int | None = None, timeout: float | None = None
    ) -> dict[int, Future[ms.Answer]]:
        """Sends each shard its message; the answers by shard. `rejoins`: as of which versions are named.

        `timeout` is in place of that of all calls.
        """
        seconds = max(self._timeout, MIN_TRY_SECONDS) if timeout is None else timeout
        as_of = self.rejoins if rejoins is None else rejoins
        sent: dict[int, Future[ms.Answer]] = {}
        with deferred_to_next_block:
            for shard, message in messages.items():
                began = time.monotonic()
                current = message if as_of == self.rejoins else self._current(message, as_of)
                first = self.transport.call(shard, current, seconds)
                sent[shard] = Future(partial(self._answer, shard, message, as_of, began, seconds, first))
        return sent

    def results(
        self,
        sent: Mapping[int, Future[ms.Answer]],
        kind: type[A] | tuple[type[A], ...],
        failed: list[int] | None = None,
    ) -> list[A]:
        """The answers, each of a `kind`, when no call is open any more: a shard has one push of a worker at a time.

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
            raise next((error for error in others if isinstance(error, StateLost)), first)  # it is what can be mended
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
                logger.log(level, "worker %s, shard %d: %s: %s", self.sender.worker, shard, failure, error)
                return None

    def abandon(self, shards: Iterable[int], sequence: int) -> None:
        """Reports to these shards that messages up to `sequence` are abandoned: no other worker waits for them."""
        for shard in shards:
            failure = "could not report that it abandoned a push"
            if self.closing.is_set() or self.call_best_effort(shard, self.renewal(shard, sequence), failure) is None:
                self.abandoned[shard] = sequence

    def report_abandoned(self) -> None:
        """Repeats failed reports of `abandon`; call before the next change, which implies them."""
        for shard, sequence in list(self.abandoned.items()):
            self.call(shard, self.renewal(shard, sequence), ms.Renewed)
            del self.abandoned[shard]

    def in_order(self, messages: Mapping[int, M]) -> dict[int, M]:
        """The messages for shards other than 0, to be processed after the changes that shard 0 decided last."""
        after, proof = self.frontier.undelivered, self.frontier.proof
        return {shard: replace(message, after=after, after_proof=proof) for shard, message in messages.items() if shard}

    def report_half_push(self, shards: Sequence[int], reason: str, *, counted: bool = False) -> None:
        """Logs and counts that these shards have not applied a push, and others have.

        Heartbeats report it to the first of the shards, unless they have `counted` it themselves.
        """
        listed = ", ".join(map(str, shards))
        text = "%s: a push was applied on some shards and not on shard %s: %s"
        logger.warning(text, self.sender.worker, listed, reason)
        self.half_applied += 1
        if not counted:
            self.half_pushes[shards[0]] += 1

    def renewal(self, shard: int, sequence: int, *, idle: bool = False) -> ms.Renew:
        """The message that renews a lease; `sequence`: up to which the worker's messages are over."""
        timeline = self.timeline  # before all numbers that belong to it
        tensor_transport, half = self.transport.tensor_transport(shard), self.half_pushes[shard]
        cut, written = self.cuts.to_show(), self._written_by_all()
        return ms.Renew(
            sender=self.sender,
            idle=idle,
            tensor_transport=tensor_transport,
            settled=sequence,
            half_pushes=half,
            cut=cut,
            written_by_all=written,
            timeline=timeline,
        )

    def _written_by_all(self) -> int:
        """The newest cut that all shards have written, as their last heartbeats have it; 0: none is known."""
        answers = [self.written.get(shard, (-1, ())) for shard in range(self.transport.shards)]
        known = [set(cuts if resets == self.cuts.resets else ()) for resets, cuts in answers]
        return max(set.intersection(*known), default=0)

    def update_chief(self, shard: int, answer: ms.Answer, reports_before: int | None = None) -> None:
        """Updates whether this worker is chief, and the job stopped, from an answer of shard 0 with both. Thread-safe.

        Heartbeats give the number of `chief_reports` from before their request: a report since then may be newer.
        """
        if shard or not isinstance(answer, ms.Joined | ms.Renewed | ms.Taken | ms.PortionTaken):
            return
        with self._chief_lock:
            if reports_before is not None and reports_before != self.chief_reports:
                return
            took_over = answer.chief and not self.chief and self.chief_reports > 0
            self.chief, self.stopped = answer.chief, answer.stopped
            self.chief_reports += 1
        if took_over:
            logger.warning("%s is now the chief: the previous one is gone", self.sender.worker)

    def _join(self, shard: int, settled: int = 0) -> ms.Join:
        sender, transport = self.sender, self.transport
        travel = self._reported[shard] = transport.tensor_transport(shard)
        choice = self._choice
        return ms.Join(
            worker=sender.worker,
            incarnation=sender.incarnation,
            shard=shard,
            shards=transport.shards,
            process_nonce=self._process_nonce,
            tensor_transport=travel,
            states=self.states,
            timeline=self.timeline,
            steps=self.steps[shard],
            settled=settled,
            job=self.job,
            resume=choice.resume,
            program=choice.program,
            cut=self.cuts.to_show(),
            proofs=self.proofs,
            name_key=self._name_key,
            workers=choice.workers,
        )

    def _current(self, message: ms.Request, rejoins: int) -> ms.Request:
        """The message, without the versions that it names if the worker has joined a shard again since `rejoins`."""
        if rejoins != self.rejoins and isinstance(message, ms.Push | ms.Pull):
            return replace(message, known_versions=())
        return message

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

        Every request may be repeated: those that must not be applied twice carry a sequence number.
        """
        pause, next_line = INITIAL_BACKOFF, LOG_EVERY
        tried, said = timeout, None  # the seconds of this try, and the last error but no answer in time
        while True:
            try:
                answer = future.result()
            except ParamServerError as error:
                waited = time.monotonic() - began
                if not error.retry and not self._joined_again(shard, error):
                    raise
                if waited >= timeout or self.closing.is_set():
                    answered, reason = self.hold_reasons.get(shard, (began, ""))
                    waits = "held the push" if isinstance(message, ms.Push) else "waits"
                    held = f": shard {shard} {waits}: {reason}" if reason and answered >= began else ""
                    if said is not None and isinstance(error, TimedOut) and tried < SHORT_TRY:
                        error = said
                    raise type(error)(f"gave up after {waited:.1f} s: {error}{held}") from None
                if waited >= next_line:
                    worker = self.sender.worker
                    logger.warning("%s waits for shard %d, for %.0f s: %s", worker, shard, waited, error)
                    next_line = waited + min(waited, MAX_LOG_EVERY)
                self.closing.wait(min(pause, timeout - waited))
                if cut_short():
                    raise  # the exception of the signal comes when the calls to other shards have ended
                pause = min(2 * pause, MAX_BACKOFF)
                said = said if isinstance(error, TimedOut) else error
                tried = max(began + timeout - time.monotonic(), MIN_TRY_SECONDS)
                future = self.transport.call(shard, self._current(message, rejoins), tried)
            else:
                if isinstance(answer, WITH_CUT):
                    if answer.cut > self.cuts.newest:
                        self.cuts.note(answer.cut)
                    if isinstance(answer, ms.Pushed) and answer.outcome is not ms.Outcome.DROPPED:
                        self.steps[shard] += 1
                if shard == 0:
                    if isinstance(answer, ms.Registered | ms.Pulled | ms.Pushed | ms.Assigned | ms.Passed):
                        self.global_step = max(self.global_step, answer.global_step)
                        if not isinstance(answer, ms.Passed):
                            self.frontier = answer.frontier or self.frontier
                    else:
                        self.update_chief(shard, answer)
                return answer

    def _joined_again(self, shard: int, error: ParamServerError) -> bool:
        """Rejoins a shard if the worker's lease there had ended; returns whether the message may be sent again.

        By then the worker's block of examples has been handed out again, and its result is discarded. Raises
        `StateLost` if the shard went back to an older state, or has to, `WrongShard` if it has none any more, and
        `Zombie` if another worker has joined with this name.
        """
        if not isinstance(error, NotJoined) or not self.sender.incarnation or self.closing.is_set():
            return False
        logger.warning("%s joins shard %d again: %s", self.sender.worker, shard, error)
        self.rejoins += 1  # counted before the answer, which may be lost
        try:
            joined = self.transport.call(shard, self._join(shard), self._timeout).result()
        except (Unavailable, TimedOut):
            return True  # as if the message itself had been lost
        assert isinstance(joined, ms.Joined)
        self._check_timeline(shard, joined, self.timeline)
        self.cuts.note(joined.cut)
        self.update_chief(shard, joined)
        return True
