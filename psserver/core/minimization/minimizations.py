"""The minimizations of a job: evaluations in progress, and the calls that wait for portions, or for all to be counted.

Shard 0 hands the portions out (`Portions`); every shard counts those whose gradients are in its sum, each once
(`psserver.core.minimization.sums`).
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

from psserver.core import events
from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.minimization.minimization import Minimization, nbytes
from psserver.core.minimization.portions import Portions
from psserver.core.minimization.vectors import Vectors
from psserver.core.part import Call, Check, Handler, Part, Position, names
from psserver.core.variables.array_tasks import StepResult
from psserver.core.variables.memory import Memory
from psserver.core.waiting import WaitingCalls
from pswire.errors import InvalidMessage, OutOfOrder, TooLarge, WrongShard
from pswire.messages import (
    ClaimPortion,
    Compute,
    Computed,
    Evaluate,
    Evaluated,
    Outcome,
    PortionClaimed,
    PortionTaken,
    Sender,
    ShardState,
    Status,
    TakePortion,
    Tick,
)

#: Minimizations of a job, with those that are over; of these only the result is kept.
MAX_MINIMIZATIONS = 10_000

#: Minimizations that a status lists: each may have a result of some kilobytes.
MAX_LISTED = 20

#: Bytes of minimizations that do not count: those of an ordinary job.
UNCOUNTED = 256 << 10


class Minimizations(Part):
    """The minimizations by name; the calls of each worker that wait: one TakePortion, and one Evaluate.

    Workers take portions on shard 0.
    """

    def __init__(self, shard: int, position: Position, members: Membership, vectors: Vectors, memory: Memory) -> None:
        self._shard, self._hands_out, self._position = shard, not shard, position
        self._members, self._vectors, self._memory = members, vectors, memory
        self._bytes: dict[str, int] = {}
        self._all_bytes = 0
        self.late = False  # whether changes are made again that were checked before
        self._all: dict[str, Minimization] = {}
        self._takers = WaitingCalls[str, TakePortion]()
        self._evaluators = WaitingCalls[str, Evaluate]()
        memory.count(lambda: self.nbytes)

    def messages(self) -> dict[type, tuple[Check | None, Handler]]:
        """As `Part.messages`."""
        return {
            Compute: (self._check_compute, self._compute),
            Evaluate: (self._check_evaluate, self._evaluate),
            TakePortion: (self._check_portions, self._take),
            ClaimPortion: (self._check_portions, self._claim),
        }

    def state(self) -> dict[str, Any]:
        """As `Part.state`."""
        return {"minimizations": tuple([one.state() for one in self._all.values()])}

    def restore(self, state: ShardState, now: float) -> None:
        """As `Part.restore`."""
        for restored in state.minimizations:
            one = self._all[restored.name] = Minimization.restored(restored)
            self._count(one)
            if self._hands_out and one.portions is None and one.evaluation is not None and not one.end:
                one.portions = Portions(one.evaluation, {}, ())  # it begins again: the number of shards is another one

    def waiting(self) -> Sequence[Call[Any]]:
        """As `Part.waiting`."""
        return [*self._evaluators.calls, *self._takers.calls]

    def forget(self, gone: Sequence[Member], result: StepResult) -> None:
        """Hand out again the portions of members that are gone, and end their calls.

        When the last worker has left, nobody goes on with the evaluations in progress.
        """
        self._takers.forget(gone, self._members, result)
        self._evaluators.forget(gone, self._members, result)
        self.release(names(gone), result)
        if not self._members.live_count and any(member.state == "left" for member in gone):
            self._give_up()

    def due(self, now: float) -> dict[str, Any]:
        """As `Part.due`."""
        takers, evaluators = self._takers.overdue(now), self._evaluators.overdue(now)
        return {"takers": tuple(takers), "evaluators": tuple(evaluators)}

    def status(self, asked: Status, now: float) -> dict[str, Any]:
        """How far the newest minimizations are, in the order in which they began."""
        newest = list(islice(reversed(self._all.values()), MAX_LISTED)) if self._hands_out else []
        return {"minimizations": tuple([one.status() for one in reversed(newest)])}

    @property
    def nbytes(self) -> int:
        """Bytes of all minimizations, as they count with variables."""
        return _counted(self._all_bytes)

    def get(self, name: str) -> Minimization | None:
        """The minimization of this name, if it has begun."""
        return self._all.get(name)

    def _at(self, name: str) -> Minimization:
        """The minimization of this name; one that has not begun if there is none."""
        return self._all.get(name) or Minimization(name)

    def begin_late(self) -> None:
        """From now on evaluations and sums come again that belong to a cut: their claims are not known here."""
        self.late = True

    def end_late(self) -> None:
        """Give up the evaluations in progress, as the chief does: some of their sums are in the cut, others are not."""
        self.late, self._evaluators = False, WaitingCalls()
        self._give_up()

    def _give_up(self) -> None:
        """Drop the evaluations in progress; results and notes stay."""
        for one in self._all.values():
            one.give_up()
            self._count(one)

    # --- coordinators ---------------------------------------------------------------------------------------------

    def _check_compute(self, message: Compute, member: Member) -> None:
        """As `_check_coordinator`, also for operations and notes without a minimization or a term."""
        if message.sequence <= member.settled:
            return  # its answer is given again
        if message.minimization and message.term:  # first: another coordinator may have dropped vectors
            self._check_coordinator(message.minimization, message.sender, message.term)
            one = self._at(message.minimization)
            self._check_memory(one.name, nbytes(one.evaluation, one.end, message.note or one.note))
        elif message.note or (message.minimization and message.operations):
            raise InvalidMessage(
                "operations and notes of a minimization need its name, and the term of its coordinator"
            )
        self._vectors.check(message)

    def _compute(self, call: Call[Compute], result: StepResult) -> None:
        message, member = call.message, call.member
        results = self._vectors.compute(message, result)
        term, note = self._take_note(message)
        result.changes.append(message)
        computed = Computed(
            outcome=Outcome.APPLIED, results=results, global_step=self._position.global_step, term=term, note=note
        )
        self._members.record(member, message.sequence, computed)
        result.reply(call.ticket, computed)

    def _take_note(self, message: Compute) -> tuple[int, str]:
        """Take the term and the note of a message; those of the minimization."""
        one = self._all.get(message.minimization)
        if message.term:
            one = self._coordinated(message.minimization, message.sender, message.term)
            one.note = message.note or one.note
            self._count(one)
        return (0, "") if one is None else (one.term, one.note)

    def _check_coordinator(self, name: str, sender: Sender, term: int) -> None:
        """Check that a worker is the coordinator of a minimization, or may become it.

        Raises:
            OutOfOrder: another worker has that term or a higher one; or, on shard 0, the worker is not the chief, and
                the term is new.
            TooLarge: the minimization is one too many.
        """
        known = self._all.get(name)
        if known is not None:
            known.check_coordinator(sender, term)
            if term == known.term:
                return
        if self._hands_out and not self.late and not self._members.chief.is_chief(sender.worker):
            raise OutOfOrder(f"worker {sender.worker!r} is not the chief, which coordinates {name!r}")
        if known is None and len(self._all) >= MAX_MINIMIZATIONS:
            raise TooLarge(
                f"minimization {name!r} would be one more than the {MAX_MINIMIZATIONS:,} that a job may have: begin "
                "another job"
            )

    def _coordinated(self, name: str, sender: Sender, term: int) -> Minimization:
        """The minimization, with its coordinator."""
        one = self._all.setdefault(name, Minimization(name))
        one.coordinator, one.term = sender, term
        self._count(one)
        return one

    # --- evaluations ----------------------------------------------------------------------------------------------

    def _check_evaluate(self, message: Evaluate, member: Member) -> None:
        """As `_check_coordinator`, unless the message only asks.

        Raise `InvalidMessage` also for an evaluation before the present one, or another one of its number.
        """
        evaluation, known = message.evaluation, self._all.get(message.name)
        if message.term:
            self._check_coordinator(message.name, message.sender, message.term)
        elif evaluation is not None or message.end:
            raise InvalidMessage(f"an evaluation or the end of {message.name!r} needs the term of its coordinator")
        if known is not None and evaluation is not None and not message.end:
            known.check_evaluation(evaluation)
        if message.term:
            one = known or Minimization(message.name)
            begun = evaluation if evaluation is not None and evaluation.number > one.number else one.evaluation
            self._check_memory(one.name, nbytes(begun, one.end or message.end, one.note))

    def _check_memory(self, name: str, needed: int) -> None:
        """Raise `TooLarge` if there is no memory for a minimization that takes so many bytes from now on."""
        more = _counted(self._all_bytes - self._bytes.get(name, 0) + needed) - self.nbytes
        if more > 0 and more > self._memory.free:
            raise TooLarge(
                f"minimization {name!r} needs {more:,} bytes more, and this shard has no memory for them: make "
                "portions larger, or raise --memory-limit"
            )

    def _count(self, one: Minimization) -> None:
        """Count the bytes of a minimization, as they are now."""
        before, now = self._bytes.get(one.name, 0), one.nbytes
        self._bytes[one.name] = now
        self._all_bytes += now - before

    def _evaluate(self, call: Call[Evaluate], result: StepResult) -> None:
        """Begin an evaluation, or end the minimization, and let the call wait."""
        message, begun = call.message, False
        worker, term = message.sender.worker, message.term
        one = self._coordinated(message.name, message.sender, term) if term else self._at(message.name)
        if not one.end and (message.end or (message.evaluation and message.evaluation.number > one.number)):
            one.point = message.point
            if message.end:
                one.finish(message.end)
                if self._hands_out:
                    result.events.append(events.minimization_over(one.name, one.point, one.backups, one.backups_won))
            elif message.evaluation is not None:
                begun = True
                live = {member.name for member in self._members.live} if self._hands_out else None
                one.begin(message.evaluation, live)
            self._count(one)
            self._answer_evaluators(one, result)
            self._serve(one, result)
        if self._may_answer(one, message):
            result.reply(call.ticket, self._evaluated(one))
        else:
            self._evaluators.add(worker, call, result)
        if begun:
            self._vectors.clear_gradient(result)
            result.changes.append(message)

    def _may_answer(self, one: Minimization, message: Evaluate) -> bool:
        asked = message.evaluation
        if asked is None or not message.wait or one.complete:
            return True
        return asked.number != one.number or bool(one.end or self._position.stopped)

    def _answer_evaluators(self, one: Minimization, result: StepResult) -> None:
        """Answer those that wait for this minimization, if there is an answer for them."""
        for call in self._evaluators.calls:
            if call.message.name == one.name and self._may_answer(one, call.message):
                self._evaluators.answer(call.message.sender.worker, self._evaluated(one), result)

    def _evaluated(self, one: Minimization, waiting_for: str = "") -> Evaluated:
        loss = one.portions.loss() if one.complete and one.portions is not None else None
        return Evaluated(
            number=one.number,
            counted=len(one.counted),
            loss=loss,
            waiting_for=waiting_for,
            end=one.end,
            stopped=self._position.stopped,
            cut=self._position.cut,
        )

    # --- portions -------------------------------------------------------------------------------------------------

    def _check_portions(self, message: TakePortion | ClaimPortion, member: Member) -> None:
        if self._shard:
            raise WrongShard(f"this is shard {self._shard}: portions are taken and claimed on shard 0")

    def _take(self, call: Call[TakePortion], result: StepResult) -> None:
        """Answer a worker with a portion, or with what else it is to do; it may have to wait."""
        message = call.message
        worker, one = message.sender.worker, self._at(message.name)
        self._takers.replace(worker, result)
        if one.portions is not None and message.withdrawn and message.evaluation == one.number:
            numbers = one.portions.withdraw(worker, message.withdrawn)
            if numbers:
                result.events.append(events.portions_returned(one.name, worker, [], numbers))
                self._serve(one, result)
        self._takers.add(worker, call, result)
        self._serve_workers(one, [worker], result)
        if worker in self._takers and call.member.training:
            result.idle.append(call.member)

    def _claim(self, call: Call[ClaimPortion], result: StepResult) -> None:
        """Take the first claim of a portion of the present evaluation; tell others that have it in hand to stop."""
        message = call.message
        one, worker = self._all.get(message.name), message.sender.worker
        if one is None or one.portions is None or one.number != message.evaluation:
            result.reply(call.ticket, PortionClaimed(counted=False))
            return
        counted, others = one.portions.claim(worker, message.portion, message.loss)
        result.reply(call.ticket, PortionClaimed(counted))
        self._serve_workers(one, [worker, *others], result)

    def _serve(self, one: Minimization, result: StepResult) -> None:
        """Answer all that wait for portions of this minimization, as far as there is an answer for them."""
        self._serve_workers(one, list(self._takers), result)

    def _serve_workers(self, one: Minimization, workers: Iterable[str], result: StepResult) -> None:
        for worker in workers:
            call = self._takers.get(worker)
            if call is None or call.message.name != one.name:
                continue
            answer = self._taken(one, call.message)
            if answer is not None:
                self._takers.answer(worker, answer, result)

    def _taken(self, one: Minimization, message: TakePortion) -> PortionTaken | None:
        """The answer to a worker; None: it waits."""
        worker, portions = message.sender.worker, one.portions
        chief = self._members.chief.is_chief(worker)
        if one.end:
            stop, cut = message.holding, self._position.cut
            return PortionTaken(
                evaluation=one.number, stop=stop, end=one.end, chief=chief, stopped=self._position.stopped, cut=cut
            )
        if portions is None or self._position.stopped or self._members[worker].quarantined:
            return None
        present = message.evaluation == one.number
        stop = portions.to_stop(worker, message.holding) if present else message.holding
        portion = portions.take(worker, message.holding if present else ())
        push = portion is None and portions.push_is_due(worker)
        if portion is None and not push and not stop:
            return None
        return PortionTaken(
            evaluation=one.number, portion=portion, push=push, stop=stop, chief=chief, cut=self._position.cut
        )

    def release(self, workers: Collection[str], result: StepResult) -> None:
        """Hand out again the portions of workers that are gone, or whose sums are dropped from now on."""
        for one in self._all.values():
            if one.portions is None:
                continue
            for worker in workers:
                returned, claimed = one.portions.release(worker)
                if returned or claimed:
                    result.events.append(events.portions_returned(one.name, worker, returned, claimed))
            self._serve(one, result)

    def stop(self, result: StepResult) -> None:
        """Hand out no more portions, since the job was stopped: tell the chief, which ends the minimization."""
        for one in self._all.values():
            self._answer_evaluators(one, result)

    def counted(self, one: Minimization, worker: str, result: StepResult) -> None:
        """Answer what waits for portions that were counted just now, those of a worker."""
        if one.portions is not None and not self.late:
            self._serve_workers(one, [worker], result)
        if one.complete:
            self._answer_evaluators(one, result)

    # --- calls that have waited for long --------------------------------------------------------------------------

    def tick(self, tick: Tick, result: StepResult) -> None:
        """Answer these workers with what they wait for; they ask again."""
        for worker in tick.takers:
            if (taker := self._takers.get(worker)) is not None:
                one = self._at(taker.message.name)
                taken = PortionTaken(
                    evaluation=one.number,
                    waiting_for=self._why_no_portion(one, worker),
                    chief=self._members.chief.is_chief(worker),
                    stopped=self._position.stopped,
                    cut=self._position.cut,
                )
                self._takers.answer(worker, taken, result)
        for worker in tick.evaluators:
            if (evaluator := self._evaluators.get(worker)) is not None:
                one = self._all[evaluator.message.name]
                self._evaluators.answer(worker, self._evaluated(one, one.missing()), result)

    def _why_no_portion(self, one: Minimization, worker: str) -> str:
        if quarantined := self._members[worker].quarantined:
            return f"nobody: its gradients are dropped, {quarantined}"
        chief = self._members.chief.state()
        who = "a chief" if chief is None else f"the chief, {chief.worker},"
        if stopped := self._position.stopped:
            return f"{who} to end {one.name!r}, since the job was stopped: {stopped}"
        if one.portions is None or one.complete:
            return f"{who} to begin the next evaluation of {one.name!r}"
        return one.missing()


def _counted(nbytes: int) -> int:
    return max(0, nbytes - UNCOUNTED)
