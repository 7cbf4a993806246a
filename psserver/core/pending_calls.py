"""Who waits for the policy's word: pushes that are held, and wishes for values; and what the policy says, carried out.

Here a push becomes an update, and an answer. When that may be is the policy's affair, what it does that of the store
and the rules. May import the other rooms of the shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from psserver.core.array_tasks import ArrayTask
from psserver.core.members.deduplication import DeduplicationTable
from psserver.core.members.membership import Member, Membership
from psserver.core.metrics import StalenessHistogram
from psserver.core.policies import Apply, Asynchronous, Drop, Policy, Serve, View, Waiting
from psserver.core.policies.policy import listed
from psserver.core.policies.update_order import UpdateOrder
from psserver.core.variables.delay_compensation import Backups
from psserver.core.variables.guarded_updates import Magnitudes
from psserver.core.variables.store import Contribution, Store
from pswire.errors import NotFinite, ParamServerError, Unavailable
from pswire.messages import (
    Answer,
    Assign,
    Assigned,
    ChangeId,
    Frontier,
    LastPush,
    Outcome,
    Pull,
    Pulled,
    Push,
    Pushed,
    Reply,
    Sender,
    UpdateGroup,
    Value,
)
from pswire.messages.sizes import Allocator


@dataclass(slots=True)
class PendingCall:
    """A push, pull or assign that is not answered yet; `answer` is there once a push was applied or dropped.

    It waits until the changes before it are settled (`after`), and then, unless it is an assign, for the policy. The
    values of its answer are put into memory of its `allocator`, if any. `magnitudes` are those of the arrays it brings.
    """

    ticket: int
    message: Push | Pull | Assign
    member: Member
    allocator: Allocator | None = None
    answer: Pushed | None = None
    magnitudes: Magnitudes = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether it is a push that is still to be settled."""
        return isinstance(self.message, Push) and self.answer is None


class PendingCalls:
    """The calls that are open, and the counts that go on when one of them is settled.

    Args:
        policy: says who may go on.
        store, ledger, members: the shard's.
        strength: of the compensation for delay; 0: none.
        decisions: of shard 0 where it orders the changes of all shards; None: changes have no order over shards.

    Attributes:
        global_step: how many updates there were.
        applied, dropped: how many pushes were.
        stalenesses: of those that were applied.
        backups: what each worker was served, if delay is compensated.
    """

    def __init__(
        self,
        policy: Policy,
        store: Store,
        ledger: DeduplicationTable,
        members: Membership,
        strength: float = 0.0,
        decisions: UpdateOrder | None = None,
    ) -> None:
        self._policy, self._store, self._ledger, self._members = policy, store, ledger, members
        self._strength, self._decisions = strength, decisions
        self._at_once = type(policy) is Asynchronous
        self._calls: dict[int, PendingCall] = {}
        self._step = -1  # of the last update, as schedules count: those of the job before it, as far as known here
        self.global_step = self.applied = self.dropped = 0
        self.stalenesses = StalenessHistogram()
        self.backups = Backups()

    @property
    def frontier(self) -> Frontier | None:
        """How far changes are decided, where this shard orders them; otherwise None."""
        return None if self._decisions is None else self._decisions.frontier()

    def park(self, call: PendingCall, tasks: list[ArrayTask]) -> list[Reply]:
        """Adds a call, and carries out what may go on by now.

        A worker has one push open: a new one replaces a held one, which the worker has given up, or of which it is a
        retry. A call for values only is replaced by any other, and never replaces a held push, as it may be late.
        """
        if self._at_once and not self._calls and not isinstance(call.message, Assign):
            return [self._answer_at_once(call, tasks)]
        given_up = [
            other for other in self._calls.values() if other.member is call.member and (call.held or not other.held)
        ]
        replies = self._end(given_up, Unavailable("another call of this worker has taken the place of this one"))
        self._calls[call.ticket] = call
        return [*replies, *self.decide(tasks)]

    def _answer_at_once(self, call: PendingCall, tasks: list[ArrayTask]) -> Reply:
        """What the asynchronous policy would do with the only call, without asking it."""
        try:
            if call.held:
                self._apply([call], 1.0, tasks)
        except NotFinite as error:
            return Reply(call.ticket, error)
        return self._serve(call, tasks)

    def give_up(self, member: Member) -> list[Reply]:
        """What a worker had open ends: it has gone on to something else."""
        mine = [call for call in self._calls.values() if call.member is member]
        return self._end(mine, Unavailable("this worker has gone on to something else meanwhile"))

    def newest(self, sender: Sender) -> int:
        """The greatest sequence number that came from this sender."""
        mine = [
            call.message.sequence
            for call in self._calls.values()
            if not isinstance(call.message, Pull) and call.message.sender == sender
        ]
        return max([self._ledger.reached(sender), *mine])

    def settle(self, sender: Sender, sequence: int) -> None:
        """This worker's messages up to `sequence` are over: those that have not come are given up."""
        self._ledger.settle(sender, sequence)
        if self._decisions is not None:
            self._decisions.settle(sender, sequence + 1)

    def _end(self, calls: Iterable[PendingCall], error: ParamServerError) -> list[Reply]:
        return [Reply(self._calls.pop(call.ticket).ticket, error) for call in calls]

    def decide(self, tasks: list[ArrayTask]) -> list[Reply]:
        """Asks the policy until it lets nobody go any more; answers come last, so that values and versions agree.

        A push is answered in the step that applies it, at the earliest: its arrays are borrowed until its answer.
        """
        served: list[PendingCall] = []
        replies: list[Reply] = []
        while self._calls:
            ready = [call for call in self._calls.values() if not call.message.after or self._in_order(call)]
            assigns = [call for call in ready if isinstance(call.message, Assign)]
            replies += [self._assign(call, tasks) for call in assigns]
            if assigns:
                continue  # pushes may be too late by it
            verdicts = self._policy.decide(self._waiting(ready), self._view())
            if not verdicts:
                break
            for verdict in verdicts:
                match verdict:
                    case Apply(tickets, scale):
                        calls = [self._calls[ticket] for ticket in tickets]
                        try:
                            self._apply(calls, scale, tasks)
                        except NotFinite as error:
                            replies += self._end(calls, error)
                            break  # the other verdicts were about these calls too
                    case Drop(ticket, reason):
                        self._drop(self._calls[ticket], reason)
                    case Serve(ticket):
                        served.append(self._calls.pop(ticket))
        return [*replies, *[self._serve(call, tasks) for call in served]]

    # --- the order over shards ------------------------------------------------------------------------------------

    def _in_order(self, call: PendingCall) -> bool:
        """Whether every change before this call is settled here; one whose worker is gone is passed over."""
        settled = [self._settled(delivery) for delivery in call.message.after]
        if not all(settled):
            return False
        self._pass_over(call.message.after)
        return True

    def _settled(self, delivery: ChangeId) -> bool:
        return self._ledger.reached(delivery.sender) >= delivery.sequence or not self._is_live(delivery.sender)

    def _is_live(self, sender: Sender) -> bool:
        member = self._members.get(sender.worker)
        return member is not None and member.state == "live" and member.incarnation == sender.incarnation

    def _pass_over(self, deliveries: Iterable[ChangeId]) -> None:
        """Others go on without these if they have not come: when they come after all, they are too late."""
        for delivery in deliveries:
            member = self._members.get(delivery.sender.worker)
            if member is not None and member.incarnation == delivery.sender.incarnation:
                self._ledger.settle(delivery.sender, delivery.sequence)

    # --- what the policy sees and says ----------------------------------------------------------------------------

    def _waiting(self, calls: Iterable[PendingCall]) -> list[Waiting]:
        """These calls as the policy sees them now."""
        waiting = []
        for call in calls:
            message = call.message
            if isinstance(message, Push) and call.answer is None:
                waiting.append(Waiting(call.ticket, call.member.name, False, self._staleness(message), message.group))
            else:
                waiting.append(Waiting(call.ticket, call.member.name, True))
        return waiting

    def _staleness(self, push: Push) -> int:
        """The most changes that the weights of a gradient have had since they were served, on whichever shard."""
        staleness = self._store.staleness(push.gradients)
        if self._decisions is None or not push.remote:
            return staleness
        return max(staleness, self._decisions.staleness(push.remote))

    def _view(self) -> View:
        return View(self.global_step, self._members, self._settled)

    def waits_for(self, worker: str) -> str:
        """Why a push of this worker is held: a sentence; empty if none is."""
        held = next((call for call in self._calls.values() if call.member.name == worker and call.held), None)
        if held is None:
            return ""
        before = [delivery.sender.worker for delivery in held.message.after if not self._settled(delivery)]
        if before:
            return f"shard 0 decided changes of {listed(before)} before this one, and they are not here yet"
        waiting = self._waiting(self._calls.values())
        mine = next(one for one in waiting if one.ticket == held.ticket)
        return self._policy.explain(mine, waiting, self._view())

    def _apply(self, calls: list[PendingCall], scale: float, tasks: list[ArrayTask]) -> None:
        """One update: the mean of these pushes; if it raises `NotFinite`, none, and nothing has changed."""
        pushes = [call.message for call in calls if isinstance(call.message, Push) and call.answer is None]
        assert len(pushes) == len(calls), "a policy applies pushes, and each once"
        stalenesses = [self._staleness(push) for push in pushes]
        magnitudes = calls[0].magnitudes if len(calls) == 1 else _largest(calls)
        step = max(self._step + 1, *[push.global_step for push in pushes])
        self._store.update(list(map(self._contribution, pushes)), step, scale, tasks, magnitudes)
        self._step = step
        group = pushes[0].group
        if group is not None:
            self._pass_over(group.members)
        frontier = None
        if self._decisions is not None or len(pushes) > 1:
            deliveries = tuple([ChangeId(push.sender, push.sequence, push.shards) for push in pushes])
            if group is None and len(pushes) > 1:
                group = UpdateGroup(self.global_step, deliveries)
            if self._decisions is not None:
                frontier = self._decisions.add(deliveries, [one.name for push in pushes for one in push.remote])
        self.global_step += 1
        for call, push, staleness in zip(calls, pushes, stalenesses, strict=True):
            member = call.member
            member.steps += 1
            member.staleness = staleness
            member.staleness_sum += staleness
            member.loss = member.loss if push.loss is None else push.loss
            if push.shards:
                member.last_push = LastPush(member.name, member.incarnation, push.sequence, push.shards)
            self.stalenesses.add(staleness)
            applied = Pushed(Outcome.APPLIED, staleness, self.global_step, group=group, frontier=frontier)
            self._settle(call, push, applied)
        self.applied += len(pushes)

    @property
    def guarded(self) -> bool:
        """Whether the update of a push that is held may be guarded."""
        guards = self._store.guards
        return bool(self._calls) and (
            bool(guards) or any(guards.needed(one.magnitudes) for one in self._calls.values())
        )

    def _contribution(self, push: Push) -> list[Contribution]:
        if not self._strength:
            return [(gradient, None) for gradient in push.gradients]
        return [(gradient, self.backups.find(push.sender.worker, gradient)) for gradient in push.gradients]

    def _drop(self, call: PendingCall, reason: str) -> None:
        message = call.message
        assert isinstance(message, Push), "a policy drops pushes only"
        self.dropped += 1
        call.member.dropped += 1
        staleness, frontier = self._staleness(message), self.frontier
        self._settle(call, message, Pushed(Outcome.DROPPED, staleness, self.global_step, (), reason, None, frontier))

    def _settle(self, call: PendingCall, push: Push, answer: Pushed) -> None:
        """What became of a push is written down; from now on it waits for its values only."""
        call.answer = answer
        call.member.clock += 1
        self._ledger.record(push.sender, push.sequence, answer)

    def _assign(self, call: PendingCall, tasks: list[ArrayTask]) -> Reply:
        message = call.message
        assert isinstance(message, Assign)
        try:
            versions = self._store.assign(message.assignments, tasks, message.add, call.magnitudes)
        except NotFinite as error:
            return Reply(self._calls.pop(call.ticket).ticket, error)
        frontier = None
        if self._decisions is not None:
            delivery = ChangeId(message.sender, message.sequence, message.shards)
            frontier = self._decisions.add([delivery], message.remote)
        answer = Assigned(Outcome.APPLIED, versions, self.global_step, frontier)
        self._ledger.record(message.sender, message.sequence, answer)
        return Reply(self._calls.pop(call.ticket).ticket, answer)

    def _serve(self, call: PendingCall, tasks: list[ArrayTask]) -> Reply:
        message, settled, allocator = call.message, call.answer, call.allocator
        assert not isinstance(message, Assign), "a policy does not see assigns"
        encoding = message.encoding
        if isinstance(message, Pull):
            values = self._store.read(
                message.names, tasks, known_versions=message.known_versions, encoding=encoding, allocator=allocator
            )
            chosen = self._store.choose(message.choices, tasks, encoding=encoding, allocator=allocator)
            answer: Answer = Pulled(values + chosen, self.global_step, self.frontier)
            if self._strength:
                for choice, value in zip(message.choices, chosen, strict=True):
                    self.backups.keep_choice(message.sender.worker, choice, value, self._store.room)
        else:
            assert settled is not None
            values = self._store.read(
                message.pull, tasks, known_versions=message.known_versions, encoding=encoding, allocator=allocator
            )
            outcome, staleness, reason = settled.outcome, settled.staleness, settled.reason
            answer = Pushed(outcome, staleness, self.global_step, values, reason, settled.group, settled.frontier)
        self.note_served(message.sender.worker, values)
        return Reply(call.ticket, answer)

    def note_served(self, worker: str, values: Collection[Value]) -> None:
        """These values are on their way to a worker."""
        if self._strength:
            self.backups.keep(worker, values, self._store.room)

    def forget(self, workers: Collection[str]) -> list[Reply]:
        """What these waited for ends, as they are gone; others may be able to go on by that: `decide` says who."""
        self.backups.forget(workers)
        gone = [call for call in self._calls.values() if call.member.name in workers]
        return [reply for call in gone for reply in self._end([call], self._members.refusal(call.message.sender))]


def _largest(calls: Iterable[PendingCall]) -> Magnitudes:
    """Of each variable's gradients."""
    largest: dict[str, float] = {}
    for call in calls:
        for name, magnitude in call.magnitudes.items():
            largest[name] = max(largest.get(name, 0.0), magnitude)
    return largest
