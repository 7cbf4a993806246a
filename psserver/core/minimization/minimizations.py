"""The minimizations of a job: evaluations in progress, and the calls that wait for portions, or for all to be counted.

Shard 0 hands the portions out (`Portions`); every shard counts those whose gradients are in its sum, each once.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from psserver.core import events
from psserver.core.cuts import Cuts
from psserver.core.members.membership import Membership
from psserver.core.minimization.minimization import Minimization, nbytes
from psserver.core.minimization.portions import Portions
from psserver.core.variables.array_tasks import StepResult
from pswire.errors import InvalidMessage, OutOfOrder, TooLarge, Unavailable
from pswire.messages import (
    ClaimPortion,
    Compute,
    CountedPortions,
    Evaluate,
    Evaluated,
    MinimizationState,
    MinimizationStatus,
    PortionClaimed,
    PortionTaken,
    Reply,
    Sender,
    TakePortion,
)

#: Seconds after which a call that waits is answered with what it waits for, so that its worker can report that.
MAX_WAIT_SECONDS = 2.0

#: Minimizations of a job, with those that are over; of these only the result is kept.
MAX_MINIMIZATIONS = 10_000

#: Bytes of minimizations that do not count: those of an ordinary job.
UNCOUNTED = 256 << 10

M = TypeVar("M", TakePortion, Evaluate)

_REPLACED = "another call of this worker has replaced this one"


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[M]):
    """A call that waits since this time."""

    ticket: int
    message: M
    since: float


class Minimizations:
    """The minimizations by name; the calls of each worker that wait: one TakePortion, and one Evaluate.

    With `hands_out`, as shard 0 has it, workers take portions here. `stopped` says why the job was stopped.
    """

    def __init__(self, members: Membership, cuts: Cuts, free_bytes: Callable[[], float], *, hands_out: bool) -> None:
        self._members, self._cuts, self._free_bytes, self._hands_out = members, cuts, free_bytes, hands_out
        self._bytes: dict[str, int] = {}
        self._all_bytes = 0
        self._late = False  # whether changes are made again that were checked before
        self._all: dict[str, Minimization] = {}
        self._takers: dict[str, _Waiting[TakePortion]] = {}
        self._evaluators: dict[str, _Waiting[Evaluate]] = {}
        self.stopped = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all minimizations, as they count with variables."""
        return _counted(self._all_bytes)

    def state(self) -> tuple[MinimizationState, ...]:
        """All minimizations, without calls that wait."""
        return tuple([one.state() for one in self._all.values()])

    def restore(self, states: Iterable[MinimizationState]) -> None:
        """Continue from a `state`."""
        for state in states:
            one = self._all[state.name] = Minimization.restored(state)
            self._count(one)
            if self._hands_out and one.portions is None and one.evaluation is not None and not one.end:
                one.portions = Portions(one.evaluation, {}, ())  # it begins again: the number of shards is another one

    def begin_late(self) -> None:
        """From now on evaluations and sums come again that belong to a cut: claims of before are not known here."""
        self._late = True

    def end_late(self) -> None:
        """Give up the evaluations in progress, as the chief does: some of their sums are in the cut, others are not."""
        self._late = False
        self._evaluators.clear()
        self.give_up()

    def give_up(self) -> None:
        """Drop the evaluations in progress; results and notes stay."""
        for one in self._all.values():
            one.give_up()
            self._count(one)

    def waiting(self) -> list[tuple[int, TakePortion | Evaluate]]:
        """The tickets and messages of calls that wait."""
        evaluators = [(call.ticket, call.message) for call in self._evaluators.values()]
        return [*evaluators, *[(call.ticket, call.message) for call in self._takers.values()]]

    def status(self, most: int) -> list[MinimizationStatus]:
        """How far the newest minimizations are, in the order in which they began."""
        newest = list(islice(reversed(self._all.values()), most))
        return [one.status() for one in reversed(newest)]

    def at(self, name: str) -> Minimization:
        """The minimization of this name; one that has not begun if there is none."""
        return self._all.get(name) or Minimization(name)

    # --- coordinators ---------------------------------------------------------------------------------------------

    def check_compute(self, message: Compute) -> None:
        """As `_check_coordinator`, also for operations and notes without a minimization or a term."""
        if message.minimization and message.term:
            self._check_coordinator(message.minimization, message.sender, message.term)
        elif message.note or (message.minimization and message.operations):
            raise InvalidMessage(
                "operations and notes of a minimization need its name, and the term of its coordinator"
            )
        if message.minimization and message.term:
            one = self.at(message.minimization)
            self._check_memory(one.name, nbytes(one.evaluation, one.end, message.note or one.note))

    def compute(self, message: Compute) -> tuple[int, str]:
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
        if self._hands_out and not self._late and not self._members.chief.is_chief(sender.worker):
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

    def check_evaluate(self, message: Evaluate) -> None:
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
        if more > 0 and more > self._free_bytes():
            raise TooLarge(
                f"minimization {name!r} needs {more:,} bytes more, and this shard has no memory for them: make "
                "portions larger, or raise --memory-limit"
            )

    def _count(self, one: Minimization) -> None:
        """Count the bytes of a minimization, as they are now."""
        before, now = self._bytes.get(one.name, 0), one.nbytes
        self._bytes[one.name] = now
        self._all_bytes += now - before

    def evaluate(self, ticket: int, message: Evaluate, now: float, result: StepResult) -> bool:
        """Begin an evaluation, or end the minimization, and let the call wait; whether an evaluation has begun."""
        worker, begun = message.sender.worker, False
        term = message.term
        one = self._coordinated(message.name, message.sender, term) if term else self.at(message.name)
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
            result.replies.append(Reply(ticket, self._evaluated(one)))
            return begun
        _end_replaced(self._evaluators.pop(worker, None), result)
        self._evaluators[worker] = _Waiting(ticket, message, now)
        return begun

    def _may_answer(self, one: Minimization, message: Evaluate) -> bool:
        asked = message.evaluation
        if asked is None or not message.wait or one.complete:
            return True
        return asked.number != one.number or bool(one.end or self.stopped)

    def _answer_evaluators(self, one: Minimization, result: StepResult) -> None:
        """Answer those that wait for this minimization, if there is an answer for them."""
        for worker, call in list(self._evaluators.items()):
            if call.message.name == one.name and self._may_answer(one, call.message):
                del self._evaluators[worker]
                result.replies.append(Reply(call.ticket, self._evaluated(one)))

    def _evaluated(self, one: Minimization, waiting_for: str = "") -> Evaluated:
        loss = one.portions.loss() if one.complete and one.portions is not None else None
        return Evaluated(
            number=one.number,
            counted=len(one.counted),
            loss=loss,
            waiting_for=waiting_for,
            end=one.end,
            stopped=self.stopped,
            cut=self._cuts.number,
        )

    # --- portions -------------------------------------------------------------------------------------------------

    def take(self, ticket: int, message: TakePortion, now: float, result: StepResult) -> bool:
        """Answer a worker with a portion, or with what else it is to do; False if it must wait."""
        worker = message.sender.worker
        _end_replaced(self._takers.pop(worker, None), result)
        one = self.at(message.name)
        if one.portions is not None and message.withdrawn and message.evaluation == one.number:
            numbers = one.portions.withdraw(worker, message.withdrawn)
            if numbers:
                result.events.append(events.portions_returned(one.name, worker, [], numbers))
                self._serve(one, result)
        self._takers[worker] = _Waiting(ticket, message, now)
        self._serve_workers(one, [worker], result)
        return worker not in self._takers

    def claim(self, ticket: int, message: ClaimPortion, result: StepResult) -> None:
        """Take the first claim of a portion of the present evaluation; tell others that have it in hand to stop."""
        one, worker = self._all.get(message.name), message.sender.worker
        if one is None or one.portions is None or one.number != message.evaluation:
            result.replies.append(Reply(ticket, PortionClaimed(counted=False)))
            return
        counted, others = one.portions.claim(worker, message.portion, message.loss)
        result.replies.append(Reply(ticket, PortionClaimed(counted)))
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
                del self._takers[worker]
                result.replies.append(Reply(call.ticket, answer))

    def _taken(self, one: Minimization, message: TakePortion) -> PortionTaken | None:
        """The answer to a worker; None: it waits."""
        worker, portions = message.sender.worker, one.portions
        chief = self._members.chief.is_chief(worker)
        if one.end:
            stop, cut = message.holding, self._cuts.number
            return PortionTaken(
                evaluation=one.number, stop=stop, end=one.end, chief=chief, stopped=self.stopped, cut=cut
            )
        if portions is None or self.stopped or self._members[worker].quarantined:
            return None
        present = message.evaluation == one.number
        stop = portions.to_stop(worker, message.holding) if present else message.holding
        portion = portions.take(worker, message.holding if present else ())
        push = portion is None and portions.push_is_due(worker)
        if portion is None and not push and not stop:
            return None
        return PortionTaken(
            evaluation=one.number, portion=portion, push=push, stop=stop, chief=chief, cut=self._cuts.number
        )

    def forget(self, workers: Collection[str], result: StepResult) -> None:
        """Hand out again the portions of workers that are gone, and end their calls."""
        for worker in workers:
            for call in (self._takers.pop(worker, None), self._evaluators.pop(worker, None)):
                if call is not None:
                    result.replies.append(Reply(call.ticket, self._members.refusal(call.message.sender)))
        self.release(workers, result)

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

    def stop(self, reason: str, result: StepResult) -> None:
        """Hand out no more portions: tell the chief, which ends the minimization."""
        self.stopped = reason
        for one in self._all.values():
            self._answer_evaluators(one, result)

    # --- sums -----------------------------------------------------------------------------------------------------

    def check_sum(self, portions: CountedPortions) -> None:
        """Check the portions of a sum.

        Raises:
            InvalidMessage: numbers that the evaluation does not have, or one of them twice.
            Unavailable: the evaluation has not begun here yet.
        """
        one, numbers = self._all.get(portions.name), portions.numbers
        if one is None or portions.evaluation > one.number:
            raise Unavailable(
                f"evaluation {portions.evaluation} of {portions.name!r} has not begun here: the chief begins it on all "
                "shards; repeat this then"
            )
        if not numbers or len(set(numbers)) < len(numbers):
            raise InvalidMessage(f"a sum of portions {numbers[:10]}: one or more, each once")
        if one.evaluation is not None and one.number == portions.evaluation and max(numbers) >= one.evaluation.portions:
            raise InvalidMessage(
                f"there is no portion {max(numbers)} in evaluation {one.number} of {one.name!r}: it has "
                f"{one.evaluation.portions}"
            )

    def refusal(self, worker: str, portions: CountedPortions) -> str:
        """Why the sum of a worker cannot be added to that of this shard; "": it can."""
        one = self._all[portions.name]
        if one.end:
            return f"{one.name!r} is over"
        if portions.evaluation != one.number:
            return f"evaluation {portions.evaluation} of {one.name!r} is over: it is at {one.number}"
        if quarantined := self._members[worker].quarantined:
            return f"quarantine: {quarantined}"
        if (known := next((number for number in portions.numbers if number in one.counted), None)) is not None:
            return f"portion {known} is counted here already"
        return "" if one.portions is None or self._late else one.portions.refusal(worker, portions.numbers)

    def has_all(self, worker: str, portions: CountedPortions) -> bool:
        """Whether all portions of a sum are counted here already, so that there is nothing to add."""
        one = self._all[portions.name]
        present = portions.evaluation == one.number and not one.end and not self._members[worker].quarantined
        return present and one.counted.issuperset(portions.numbers)

    def count(self, worker: str, portions: CountedPortions, result: StepResult) -> None:
        """Count the portions of a sum that has no `refusal`; if all are now, answer those that wait for that."""
        one = self._all[portions.name]
        one.counted.update(portions.numbers)
        if one.portions is not None and not self._late:
            one.portions.count(worker, portions.numbers)
            self._serve_workers(one, [worker], result)
        if one.complete:
            self._answer_evaluators(one, result)

    # --- calls that have waited for long --------------------------------------------------------------------------

    def overdue(self, now: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The workers whose TakePortion and whose Evaluate have waited for long."""
        takers = [worker for worker, call in self._takers.items() if now - call.since >= MAX_WAIT_SECONDS]
        evaluators = [worker for worker, call in self._evaluators.items() if now - call.since >= MAX_WAIT_SECONDS]
        return tuple(takers), tuple(evaluators)

    def explain(self, takers: Iterable[str], evaluators: Iterable[str], result: StepResult) -> None:
        """Answer these workers with what they wait for; they ask again."""
        for worker in takers:
            if (call := self._takers.pop(worker, None)) is not None:
                one = self.at(call.message.name)
                chief, why = self._members.chief.is_chief(worker), self._why_no_portion(one, worker)
                number, cut = one.number, self._cuts.number
                taken = PortionTaken(evaluation=number, waiting_for=why, chief=chief, stopped=self.stopped, cut=cut)
                result.replies.append(Reply(call.ticket, taken))
        for worker in evaluators:
            if (waiting := self._evaluators.pop(worker, None)) is not None:
                one = self._all[waiting.message.name]
                result.replies.append(Reply(waiting.ticket, self._evaluated(one, one.missing())))

    def _why_no_portion(self, one: Minimization, worker: str) -> str:
        if quarantined := self._members[worker].quarantined:
            return f"nobody: its gradients are dropped, {quarantined}"
        chief = self._members.chief.state()
        who = "a chief" if chief is None else f"the chief, {chief.worker},"
        if self.stopped:
            return f"{who} to end {one.name!r}, since the job was stopped: {self.stopped}"
        if one.portions is None or one.complete:
            return f"{who} to begin the next evaluation of {one.name!r}"
        return one.missing()


def _counted(nbytes: int) -> int:
    return max(0, nbytes - UNCOUNTED)


def _end_replaced(call: _Waiting[TakePortion] | _Waiting[Evaluate] | None, result: StepResult) -> None:
    if call is not None:
        result.replies.append(Reply(call.ticket, Unavailable(_REPLACED)))
