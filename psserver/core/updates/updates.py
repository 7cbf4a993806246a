"""Updates: makes and answers the pushes, pulls and assigns that are released; counts of pushes."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from psserver.core.data.data_queues import DataQueues
from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.part import Call, Part, Position
from psserver.core.policies.update_order import UpdateOrder
from psserver.core.updates.staleness import EXACT, Staleness, rounded
from psserver.core.variables.array_tasks import StepResult
from psserver.core.variables.element_checks import Magnitudes
from psserver.core.variables.store import Store
from pswire import messages as ms


class Updates(Part):
    """Makes updates of pushes, and answers these; `order` is there if this shard orders changes on all shards.

    `applied`, `dropped` and `clipped` count pushes, and `repeated` messages that had been settled before. `last_step`
    is the step of the last update for learning-rate schedules: the updates of the job before it, as far as known here.
    """

    def __init__(
        self, position: Position, members: Membership, store: Store, queues: DataQueues, order: UpdateOrder | None
    ) -> None:
        self._position, self._members, self._store, self._queues, self.order = position, members, store, queues, order
        self.last_step = -1
        self.applied = self.dropped = self.clipped = self.repeated = 0
        self.staleness = Staleness(store, order)

    def state(self) -> dict[str, Any]:
        """As `Part.state`."""
        stalenesses = tuple([ms.StalenessCount(*one) for one in self.staleness.counts.items()])
        return {
            "global_step": self._position.global_step,
            "last_step": self.last_step,
            "applied": self.applied,
            "dropped": self.dropped,
            "clipped": self.clipped,
            "repeated": self.repeated,
            "stalenesses": stalenesses,
            "order": None if self.order is None else self.order.state(),
        }

    def restore(self, state: ms.ShardState, now: float) -> None:
        """As `Part.restore`."""
        self._position.global_step, self.last_step = state.global_step, state.last_step
        self.applied, self.dropped, self.clipped = state.applied, state.dropped, state.clipped
        self.repeated = state.repeated
        self.staleness.counts.update({one.staleness: one.pushes for one in state.stalenesses})
        if self.order is not None and state.order is not None:
            self.order.restore(state.order)

    def status(self, asked: ms.Status, now: float) -> dict[str, Any]:
        """As `Part.status`."""
        return {
            "global_step": self._position.global_step,
            "repeated": self.repeated,
            "dropped": self.dropped,
            "clipped": self.clipped,
            "staleness": self.staleness.status(),
        }

    @property
    def frontier(self) -> ms.Frontier | None:
        """How far changes are decided; None where this shard does not order them."""
        return None if self.order is None else self.order.frontier()

    def apply(self, calls: Sequence[Call[Any]], scale: float, result: StepResult) -> None:
        """Make one update of the mean of these pushes; if it raises `NotFinite`, none, and nothing has changed."""
        pushes, stalenesses, factors, clipped, step = [], [], [], False, self.last_step + 1
        for call in calls:
            push = call.message
            assert isinstance(push, ms.Push), "a policy applies pushes"
            assert call.answer is None, "a policy applies each push once"
            pushes.append(push)
            stalenesses.append(self.staleness.of(call))
            factors.append(call.factor)
            clipped |= call.factor != 1.0
            step = max(step, push.global_step)
        magnitudes = calls[0].magnitudes if len(calls) == 1 else _largest(calls)
        group = pushes[0].group
        count = max(len(pushes), 0 if group is None else group.pushes)
        self._store.update(pushes, count, step, scale, magnitudes, result, factors if clipped else ())
        self.last_step = step
        self.staleness.changes += 1
        if group is not None:
            self.pass_over(group.members)
        frontier = None
        if self.order is not None or len(pushes) > 1:
            changes = tuple([ms.ChangeId(push.sender, push.sequence, push.shards) for push in pushes])
            if group is None and len(pushes) > 1:
                group = ms.UpdateGroup(number=self._position.global_step, members=changes)
            if self.order is not None:
                frontier = self.order.add(changes, [one.name for push in pushes for one in push.remote])
        self._position.global_step += 1
        for call, staleness in zip(calls, stalenesses, strict=True):
            self._count_applied(call, staleness)
            self._answer(call, ms.Outcome.APPLIED, staleness, call.clipped, group, frontier, result)
        self.applied += len(pushes)
        result.changes += pushes

    def _count_applied(self, call: Call[Any], staleness: int) -> None:
        member, push = call.member, call.message
        member.steps += 1
        member.staleness = staleness
        member.staleness_sum += staleness
        if push.loss is not None:
            _count_loss(member, push.loss)
        member.counts.add_gradients(push.gradients, call.magnitudes, self._store.variables, self._position.global_step)
        if push.shards:
            member.last_push = ms.LastPush(
                worker=member.name, incarnation=member.incarnation, sequence=push.sequence, shards=push.shards
            )
        self.staleness.counts[staleness if staleness < EXACT else rounded(staleness)] += 1
        if call.clipped:
            self.clipped += 1
            member.clipped += 1

    def drop(self, call: Call[Any], reason: str, result: StepResult) -> None:
        """Drop a push; it waits for its values only."""
        self.dropped += 1
        call.member.dropped += 1
        call.member.counts.drop_reason = reason
        self._answer(call, ms.Outcome.DROPPED, self.staleness.of(call), reason, None, self.frontier, result)

    def _answer(
        self,
        call: Call[Any],
        outcome: ms.Outcome,
        staleness: int,
        reason: str,
        group: ms.UpdateGroup | None,
        frontier: ms.Frontier | None,
        result: StepResult,
    ) -> None:
        """Settle a push that was a step of its worker."""
        call.member.clock += 1
        if result.now > call.since:
            call.member.counts.waited += result.now - call.since
        answer = ms.Pushed(
            outcome=outcome,
            staleness=staleness,
            global_step=self._position.global_step,
            reason=reason,
            group=group,
            frontier=frontier,
            cut=self._position.cut,
        )
        self._settle(call, answer)

    def settle_empty(self, call: Call[ms.Push], result: StepResult) -> None:
        """Settle a push that changes no variable on any shard; from now on it waits for its values only.

        It is no step of its worker, so the policy is not asked: it moves neither the global step nor a clock, and is
        none of the gradients of an update. Its examples are done.
        """
        push, member = call.message, call.member
        member.steps += 1
        member.counts.empty += 1
        if push.loss is not None:
            _count_loss(member, push.loss)
        result.changes.append(push)
        answer = ms.Pushed(
            outcome=ms.Outcome.APPLIED,
            staleness=0,
            global_step=self._position.global_step,
            frontier=self.frontier,
            cut=self._position.cut,
        )
        self._settle(call, answer)

    def _settle(self, call: Call[Any], answer: ms.Pushed) -> None:
        """Settle a push, and note that its examples are done; from now on it waits for its values only."""
        push, call.answer = call.message, answer
        if push.progress:
            self._queues.note(push)
        self._members.record(call.member, push.sequence, answer)

    def assign(self, call: Call[ms.Assign], result: StepResult) -> None:
        """Set variables, or add to them, and answer; `NotFinite` is an answer too, and nothing has changed then."""
        message = call.message
        versions = self._store.assign(message, call.magnitudes, result)
        self.staleness.changes += 1
        frontier = None
        if self.order is not None:
            change = ms.ChangeId(message.sender, message.sequence, message.shards)
            frontier = self.order.add([change], message.remote)
        result.changes.append(message)
        answer = ms.Assigned(
            outcome=ms.Outcome.APPLIED,
            versions=versions,
            global_step=self._position.global_step,
            frontier=frontier,
        )
        self._members.record(call.member, message.sequence, answer)
        result.reply(call.ticket, answer)

    def repeat(self, call: Call[Any], result: StepResult) -> None:
        """Answer an assign, tune or compute again that was settled before."""
        self.repeated += 1
        if isinstance(call.message, ms.Compute):
            self._store.wait_for(call.message.names, result)  # its results may not be there yet
        result.reply(call.ticket, as_repeated(call.member.answer))

    def serve(self, call: Call[Any], result: StepResult) -> None:
        """Answer a pull, or a push that is settled, with the values of this moment."""
        message, settled, step = call.message, call.answer, self._position.global_step
        if settled is None:
            values = self._store.read(message, message.names, message.choices, result, call.allocator)
            result.reply(call.ticket, ms.Pulled(values, step, self.frontier))
            return
        values = self._store.read(message, message.pull, (), result, call.allocator)
        answer = ms.Pushed(
            outcome=settled.outcome,
            staleness=settled.staleness,
            global_step=step,
            values=values,
            reason=settled.reason,
            group=settled.group,
            frontier=settled.frontier,
            cut=settled.cut,
        )
        result.reply(call.ticket, answer)

    # --- the order over shards ------------------------------------------------------------------------------------

    def is_settled(self, change: ms.ChangeId) -> bool:
        """Whether a change will not be made here any more: it was, it was abandoned, or its worker is gone."""
        sender = change.sender
        return not self._members.is_live(sender) or self._members[sender.worker].settled >= change.sequence

    def settle(self, member: Member, sequence: int) -> None:
        """Note that a worker knows the outcome of its messages up to `sequence`, or has abandoned them."""
        sender = ms.Sender(member.name, member.incarnation)
        self._members.settle(sender, sequence)
        if self.order is not None:
            self.order.settle(sender, sequence + 1)
        self._members.half_pushes.settle(member, sequence)

    def forget_order(self, worker: str) -> None:
        """Note that a worker has been gone for so long that no message of it is under way."""
        if self.order is not None:
            self.order.forget(worker)

    def pass_over(self, changes: Iterable[ms.ChangeId]) -> None:
        """Skip changes that have not arrived; if they arrive later, they are refused."""
        for change in changes:
            self._members.settle(change.sender, change.sequence)


def as_repeated(answer: Any) -> Any:  # noqa: ANN401 - a Pushed, Assigned, Tuned or Computed
    """The answer to a message that was settled before."""
    return replace(answer, outcome=ms.Outcome.REPEATED) if answer.outcome is ms.Outcome.APPLIED else answer


def _count_loss(member: Member, loss: float) -> None:
    member.loss = loss
    member.counts.add_loss(loss)


def _largest(calls: Iterable[Call[Any]]) -> Magnitudes:
    """The largest magnitude of each variable's gradients."""
    largest: dict[str, float] = {}
    for call in calls:
        for name, magnitude in call.magnitudes.items():
            largest[name] = max(largest.get(name, 0.0), magnitude)
    return largest
