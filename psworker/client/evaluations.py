"""The calls of a minimization: vectors on the shards, evaluations of a loss over all data, and their portions.

They may be made by several threads; each change is made on its own (`Rollback.changing`).
"""

from collections.abc import Mapping, Sequence

from pswire import messages as ms
from pswire.specs.vectors import Operation
from pswire.tensors.values import Array
from psworker.client.push_pull import ShardedPull
from psworker.client.registration import ShardedRegistration
from psworker.client.retry import Calls
from psworker.client.rollback import Rollback, RolledBack, redone


class Evaluations:
    """The minimizations of one job, as one worker takes part in them.

    After a rollback, vectors, notes and evaluations are those of the cut. Then `compute`, `begin` and `progress` raise
    `RolledBack`; they raise `OutOfOrder` if another worker coordinates the minimization.
    """

    def __init__(self, calls: Calls, registration: ShardedRegistration, rollback: Rollback) -> None:
        self._calls, self._member = calls, calls.membership
        self._registration, self.rollback = registration, rollback

    def shards_of(self, names: Sequence[str]) -> list[int]:
        """Shard 0, and the shards that have a part of one of these variables, in order."""
        return sorted({0, *ShardedPull(self._registration.placement, names).names})

    def compute(
        self, names: Sequence[str], operations: Sequence[Operation], minimization: str, term: int, note: str = ""
    ) -> list[ms.Computed]:
        """Applies operations to vectors of these variables on all shards, once; the answers, in the order of shards.

        With a `note`, only shard 0 gets the message.
        """
        calls, member = self._calls, self._member
        parts: Mapping[int, Sequence[str]] = {} if note else ShardedPull(self._registration.placement, names).names
        shards = [0] if note else range(calls.transport.shards)
        with self.rollback.changing, self.rollback.raised("the minimization goes on from its last point there"):
            member.sequence += 1
            with member.cuts as cut:
                messages = {
                    shard: ms.Compute(
                        sender=member.sender,
                        sequence=member.sequence,
                        names=tuple(parts.get(shard, ())),
                        operations=tuple(operations),
                        minimization=minimization,
                        term=term,
                        note=note,
                        cut=cut,
                    )
                    for shard in shards
                }
                return calls.results(calls.send(messages), ms.Computed)

    def begin(
        self,
        names: Sequence[str],
        minimization: str,
        term: int,
        evaluation: ms.Evaluation | None,
        end: str = "",
        point: ms.AcceptedPoint | None = None,
    ) -> None:
        """Begins an evaluation on the shards with variables, on shard 0 last, or ends the minimization.

        `point` is the last accepted one, for status and displays.
        """
        member, shards = self._member, self.shards_of(names)
        with self.rollback.changing, member.cuts as cut:
            message = ms.Evaluate(
                sender=member.sender,
                name=minimization,
                evaluation=evaluation,
                end=end,
                timeline=member.timeline,
                point=point,
                wait=False,
                cut=cut,
                term=term,
            )
            for some in (shards[1:], shards[:1]):
                self._evaluate(some, message)

    def progress(
        self, names: Sequence[str], minimization: str, term: int = 0, evaluation: ms.Evaluation | None = None
    ) -> list[ms.Evaluated]:
        """The progress of an evaluation on shard 0, and on the shards with a part of a variable, in order.

        Returns when it is complete, or after some seconds; without an evaluation at once.
        """
        message = ms.Evaluate(
            sender=self._member.sender,
            name=minimization,
            evaluation=evaluation,
            timeline=self._member.timeline,
            term=term,
        )
        return self._evaluate(self.shards_of(names), message)

    def _evaluate(self, shards: Sequence[int], message: ms.Evaluate) -> list[ms.Evaluated]:
        with self.rollback.raised("the evaluation begins again"):
            return self._calls.results(self._calls.send(dict.fromkeys(shards, message)), ms.Evaluated)

    @redone("it takes another portion of the data")
    def take_portion(
        self, minimization: str, evaluation: int, holding: Sequence[int], withdrawn: Sequence[int]
    ) -> ms.PortionTaken:
        """The next portion of the present evaluation, or within seconds what else there is to do."""
        message = ms.TakePortion(
            sender=self._member.sender,
            name=minimization,
            evaluation=evaluation,
            holding=tuple(holding),
            withdrawn=tuple(withdrawn),
            timeline=self._member.timeline,
        )
        return self._calls.call(0, message, ms.PortionTaken)

    def claim_portion(self, minimization: str, evaluation: int, portion: int, loss: float) -> bool:
        """Claims a portion, with the sum of its losses; whether the claim counts. It does not after a rollback."""
        message = ms.ClaimPortion(
            sender=self._member.sender,
            name=minimization,
            evaluation=evaluation,
            portion=portion,
            loss=loss,
            timeline=self._member.timeline,
        )
        try:
            with self.rollback.raised("what it has computed of a portion is discarded"):
                return self._calls.call(0, message, ms.PortionClaimed).counted
        except RolledBack:
            return False

    def push_sum(self, gradients: Mapping[str, Array], portions: ms.CountedPortions, rollbacks: int) -> str:
        """Adds gradients to the sum of an evaluation, on each shard once, on shard 0 last; "", or why it was dropped.

        If a shard drops it, shard 0 does not count its portions. A shard that has counted all of them adds nothing.
        Nothing is pushed after a rollback since the gradients were computed, when there were this many `rollbacks`.
        """
        rollback, placement = self.rollback, self._registration.placement
        parts: dict[int, list[ms.Assignment]] = {shard: [] for shard in self.shards_of(list(gradients))}
        for name, gradient in gradients.items():
            variable = placement[name]
            variable.check(gradient, "gradient")
            for partition, array in zip(variable.partitions, variable.split(gradient), strict=True):
                parts[partition.shard].append(ms.Assignment(name, array))
        with rollback.changing:
            if rollback.count != rollbacks:
                return rollback.reason
            try:
                with rollback.raised("its gradients of portions are discarded"):
                    return self._push_sum(parts, portions)
            except RolledBack as error:
                return str(error)

    def _push_sum(self, parts: Mapping[int, list[ms.Assignment]], portions: ms.CountedPortions) -> str:
        calls, member = self._calls, self._member
        calls.report_abandoned()
        member.sequence += 1
        others = tuple([shard for shard in parts if shard])
        with member.cuts as cut:
            messages = {
                shard: ms.Assign(
                    sender=member.sender,
                    sequence=member.sequence,
                    assignments=tuple(mine),
                    add=True,
                    shards=others,
                    cut=cut,
                    portions=portions,
                )
                for shard, mine in parts.items()
            }
            for some in ({shard: messages[shard] for shard in others}, {0: messages[0]}):
                for answer in calls.results(calls.send(some), ms.Assigned):
                    if answer.outcome is ms.Outcome.DROPPED:
                        return answer.reason
        return ""
