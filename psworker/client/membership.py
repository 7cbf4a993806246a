"""The membership of one worker in a job: its identity, and the state that the shards' answers have reported.

Builds the messages that concern the membership itself; sends none (`psworker.client.retry`). Independent of variables.
"""

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pswire import messages as ms
from pswire.errors import StateLost
from psworker.client.cut_numbers import CutNumbers
from psworker.transport import Transport

logger = logging.getLogger(__name__)

#: `Join.name_key` of workers without one: their name is taken over at once by this process only.
PROCESS_KEY = secrets.token_bytes(32)

M = TypeVar("M", ms.Assign, ms.Pull, ms.Push | ms.Pull)  # ordered over shards


@dataclass(frozen=True, slots=True)
class JobChoice:
    """The job that a worker is to take part in: as `Job.name`, and `Join.resume`, `program` and `workers` are."""

    name: str = ""
    resume: bool = False
    program: str = ""
    workers: int = 0


class WorkerMembership:
    """The state of one worker as a member. Used by one thread, and by its heartbeats.

    `choice` and `name_key` are for `Join`.

    Attributes:
        sender: the worker as a member; with incarnation 0 until it has joined.
        job: in which it takes part; with number 0 until it has joined.
        sequence: the number of its last push, assign, tune or compute.
        stopped: why the job was stopped, as last reported by shard 0; "": it was not.
        states: of the shards when the worker joined them (`Joined.state`); () until it has joined all.
        rejoins: how often it has joined a shard again. Earlier versions may count other updates, so no message is sent
            that names them.
        timeline: of the shards when the worker joined them: how often the job went back, from 1 with storage.
        went_back: `rejoins` at the last rollback; gradients of earlier weights are not pushed.
        steps: by shard, the pushes that it has acknowledged as applied; after a rollback, those in its cut.
        global_step, frontier: of shard 0, as of its last answer with values; the step also as of the last barrier.
            Inside a generation, the step is the generation's.
        half_pushes: by shard, pushes that it has not applied and others have; counted for the first such shard, if no
            shard counts it.
        half_applied: all pushes that some shards have applied, and others have not.
        chief, chief_reports: whether this worker is chief, as last reported by shard 0, and the number of reports.
        hold_reasons: by shard, the time (monotonic) of its last answer to a heartbeat, and why it holds a push.
        unreleased: by shard, a cut that this worker no longer holds, to be reported by a heartbeat.
        abandoned: by shard, the sequence number up to which messages are abandoned, if it does not know yet.
        cuts: the numbers of cuts that messages carry.
        written: by shard, the last answer to a heartbeat: `cuts.resets` from before it, and the cuts that are written.
    """

    def __init__(
        self,
        transport: Transport,
        worker: str,
        choice: JobChoice = JobChoice(),
        name_key: bytes = b"",
    ) -> None:
        self.sender = ms.Sender(worker, 0)
        self.job, self.choice, self.stopped = ms.Job(name=choice.name), choice, ""
        self.sequence = 0
        self.states: tuple[int, ...] = ()
        self.rejoins = self.global_step = self.timeline = self.went_back = 0
        self.steps: Counter[int] = Counter()
        self.half_pushes: Counter[int] = Counter()
        self.half_applied = 0
        self.frontier = ms.Frontier(0)
        self.abandoned: dict[int, int] = {}
        self.unreleased: dict[int, int] = {}
        self.cuts = CutNumbers()
        self.chief, self.chief_reports = False, 0
        self.hold_reasons: dict[int, tuple[float, str]] = {}
        self.written: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.reported: dict[int, str] = {}  # by shard, the tensor transport in the last Join
        self._chief_lock = threading.Lock()
        self._transport = transport
        self._process_nonce = secrets.randbits(62) + 1
        self._name_key = name_key or PROCESS_KEY

    def join_message(self, shard: int, settled: int = 0) -> ms.Join:
        """The message that joins a shard, also again; messages up to `settled` are abandoned."""
        sender, choice = self.sender, self.choice
        tensor_transport = self.reported[shard] = self._transport.tensor_transport(shard)
        return ms.Join(
            worker=sender.worker,
            incarnation=sender.incarnation,
            shard=shard,
            shards=self._transport.shards,
            process_nonce=self._process_nonce,
            tensor_transport=tensor_transport,
            states=self.states,
            timeline=self.timeline,
            steps=self.steps[shard],
            settled=settled,
            job=self.job,
            resume=choice.resume,
            program=choice.program,
            cut=self.cuts.to_show(),
            name_key=self._name_key,
            workers=choice.workers,
        )

    def renewal(self, shard: int, sequence: int, *, idle: bool = False) -> ms.Renew:
        """The message that renews a lease; messages up to `sequence` are settled."""
        timeline = self.timeline  # before all numbers that belong to it
        tensor_transport, half_pushes = self._transport.tensor_transport(shard), self.half_pushes[shard]
        cut, written = self.cuts.to_show(), self._written_by_all()
        return ms.Renew(
            sender=self.sender,
            idle=idle,
            tensor_transport=tensor_transport,
            settled=sequence,
            half_pushes=half_pushes,
            cut=cut,
            written_by_all=written,
            timeline=timeline,
        )

    def _written_by_all(self) -> int:
        """The newest cut that all shards have written, as of their last heartbeats; 0: none is known."""
        answers = [self.written.get(shard, (-1, ())) for shard in range(self._transport.shards)]
        known = [set(cuts if resets == self.cuts.resets else ()) for resets, cuts in answers]
        return max(set.intersection(*known), default=0)

    def note(self, shard: int, answer: ms.Answer) -> None:
        """Updates the state from an answer to one of the worker's own calls."""
        if isinstance(answer, ms.Pushed):
            if answer.cut > self.cuts.newest:
                self.cuts.note(answer.cut)
            if answer.outcome is not ms.Outcome.DROPPED:
                self.steps[shard] += 1
        elif isinstance(answer, ms.Taken | ms.Renewed | ms.Joined | ms.Evaluated | ms.PortionTaken):
            self.cuts.note(answer.cut)
        if shard:
            return
        if isinstance(answer, ms.Registered | ms.Pulled | ms.Pushed | ms.Assigned | ms.Passed):
            self.global_step = max(self.global_step, answer.global_step)
            if not isinstance(answer, ms.Passed):
                self.frontier = answer.frontier or self.frontier
        else:
            self.update_chief(shard, answer)

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

    def note_joined(self, answers: Sequence[ms.Joined]) -> None:
        """Notes the identities of all shards, from their answers to the joins."""
        self.states = tuple([joined.state for joined in answers])

    def check_timeline(self, shard: int, joined: ms.Joined, timeline: int) -> None:
        """Raises `StateLost` if a shard follows another timeline."""
        if joined.timeline != timeline:
            raise StateLost(f"shard {shard} follows timeline {joined.timeline} of the job, and others {timeline}")

    def begin_timeline(self, timeline: int, cut: int) -> None:
        """Begins a timeline after all shards went back to a cut."""
        self.rejoins += 1
        self.cuts.reset(cut)  # answers may have later ones; before `timeline`, as `renewal` reads them
        self.went_back, self.timeline = self.rejoins, timeline
        self.abandoned.clear()
        self.unreleased.clear()
        self.hold_reasons.clear()

    def current(self, message: ms.Request, rejoins: int) -> ms.Request:
        """The message, without the versions that it names if the worker has joined a shard again since `rejoins`."""
        if rejoins != self.rejoins and isinstance(message, ms.Push | ms.Pull):
            return replace(message, known_versions=())
        return message

    def in_order(self, messages: Mapping[int, M]) -> dict[int, M]:
        """The messages for shards other than 0, to be processed after the changes that shard 0 decided last."""
        after = self.frontier.undelivered
        return {shard: replace(message, after=after) for shard, message in messages.items() if shard}

    def report_half_push(self, shards: Sequence[int], reason: str, *, counted: bool = False) -> None:
        """Logs and counts a push that these shards have not applied, and others have.

        Heartbeats report it to the first of the shards, unless they have `counted` it themselves.
        """
        listed = ", ".join(map(str, shards))
        text = "%s: a push was applied on some shards and not on shard %s: %s"
        logger.warning(text, self.sender.worker, listed, reason)
        self.half_applied += 1
        if not counted:
            self.half_pushes[shards[0]] += 1
