"""The sums of gradients of an evaluation on this shard, and the portions that are in them, each once."""

from collections.abc import Iterable

from psserver.core.members.membership import Membership
from psserver.core.minimization.minimization import Minimization
from psserver.core.minimization.minimizations import Minimizations
from psserver.core.minimization.vectors import Vectors
from psserver.core.part import Call, Position
from psserver.core.variables.array_tasks import StepResult
from pswire.errors import InvalidMessage, Unavailable
from pswire.messages import Assign, Assigned, Assignment, CountedPortions, Frontier, Outcome


class Sums:
    """Adds the sums that workers send by `Assign` with portions."""

    def __init__(self, position: Position, members: Membership, minimizations: Minimizations, vectors: Vectors) -> None:
        self._position, self._members, self._minimizations = position, members, minimizations
        self._vectors = vectors

    def check(self, portions: CountedPortions, assignments: Iterable[Assignment]) -> None:
        """Check the portions of a sum, its gradients, and that there is memory for it.

        Raises:
            InvalidMessage: numbers that the evaluation does not have, or one of them twice.
            Unavailable: the evaluation has not begun here yet.
            TooLarge: there is no memory.
        """
        one, numbers = self._minimizations.get(portions.name), portions.numbers
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
        self._vectors.check_gradients(assignments)

    def add(self, call: Call[Assign], portions: CountedPortions, frontier: Frontier | None, result: StepResult) -> None:
        """Add gradients to the sum of an evaluation, count their portions, and answer; or drop them."""
        message, one = call.message, self._minimizations.get(portions.name)
        assert one is not None, "checked"
        worker = message.sender.worker
        counted = self._has_all(one, worker, portions)
        reason = "" if counted else self._refusal(one, worker, portions)
        outcome = Outcome.DROPPED if reason else Outcome.REPEATED if counted else Outcome.APPLIED
        if outcome is Outcome.APPLIED:
            self._vectors.add_to_sum(message.assignments, result)
            result.changes.append(message)
        answer = Assigned(
            outcome=outcome, versions=(), global_step=self._position.global_step, frontier=frontier, reason=reason
        )
        self._members.record(call.member, message.sequence, answer)
        result.reply(call.ticket, answer)
        if outcome is Outcome.APPLIED:
            one.counted.update(portions.numbers)
            if one.portions is not None and not self._minimizations.late:
                one.portions.count(worker, portions.numbers)
            self._minimizations.counted(one, worker, result)

    def _has_all(self, one: Minimization, worker: str, portions: CountedPortions) -> bool:
        """Whether all portions of a sum are counted here already, so that there is nothing to add."""
        present = portions.evaluation == one.number and not one.end and not self._members[worker].quarantined
        return present and one.counted.issuperset(portions.numbers)

    def _refusal(self, one: Minimization, worker: str, portions: CountedPortions) -> str:
        """Why the sum of a worker cannot be added to that of this shard; "": it can."""
        if one.end:
            return f"{one.name!r} is over"
        if portions.evaluation != one.number:
            return f"evaluation {portions.evaluation} of {one.name!r} is over: it is at {one.number}"
        if quarantined := self._members[worker].quarantined:
            return f"quarantine: {quarantined}"
        if (known := next((number for number in portions.numbers if number in one.counted), None)) is not None:
            return f"portion {known} is counted here already"
        return (
            "" if one.portions is None or self._minimizations.late else one.portions.refusal(worker, portions.numbers)
        )
