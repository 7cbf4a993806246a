"""Who waits for the policy's word: pushes that are held, and wishes for values; and what the policy says, carried out.

Here a push becomes an update, and an answer. When that may be is the policy's affair, what it does that of the store
and the rules. May import the other rooms of the shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from psserver.core.backups import Backups
from psserver.core.ledger import Ledger
from psserver.core.membership import Member, Membership
from psserver.core.meter import StalenessHistogram
from psserver.core.policies import Apply, Asynchronous, Drop, Policy, Serve, View, Waiting
from psserver.core.store import Contribution, Store
from psserver.core.tasks import Task
from pswire.errors import ParamServerError, Unavailable
from pswire.messages import Answer, Group, Outcome, Pull, Pulled, Push, Pushed, Reply, Sender, Value
from pswire.payload import Room


@dataclass(slots=True)
class ParkedCall:
    """A push or pull that the policy has not let go yet; `answer` is there once a push was applied or dropped.

    The values of what it is told are put in its `room`, if there is one.
    """

    ticket: int
    message: Push | Pull
    member: Member
    room: Room | None = None
    answer: Pushed | None = None

    @property
    def held(self) -> bool:
        """Whether it is a push that is still to be settled."""
        return isinstance(self.message, Push) and self.answer is None


class WaitingRoom:
    """The calls that are open, and the counts that go on when one of them is settled.

    Args:
        policy: says who may go on.
        store, ledger, members: the shard's.
        strength: of the compensation for delay; 0: none.

    Attributes:
        global_step: how many updates there were.
        applied, dropped: how many pushes were.
        stalenesses: of those that were applied.
        backups: what each worker was served, if delay is compensated.
    """

    def __init__(
        self, policy: Policy, store: Store, ledger: Ledger, members: Membership, strength: float = 0.0
    ) -> None:
        self._policy, self._store, self._ledger, self._members = policy, store, ledger, members
        self._strength = strength
        self._at_once = type(policy) is Asynchronous
        self._calls: dict[int, ParkedCall] = {}
        self.global_step = self.applied = self.dropped = 0
        self.stalenesses = StalenessHistogram()
        self.backups = Backups()

    def park(self, call: ParkedCall, tasks: list[Task]) -> list[Reply]:
        """A worker has one push open: one that it gave up makes room, or a retry of a held one would make two of it.

        What wishes for values only makes room for whatever comes after it, and never takes the place of a held push: it
        may be a late one.
        """
        if self._at_once and not self._calls:  # what the policy would say, without asking
            if call.held:
                self._apply([call], 1.0, tasks)
            return [self._serve(call, tasks)]
        given_up = [
            other for other in self._calls.values() if other.member is call.member and (call.held or not other.held)
        ]
        replies = self._end(given_up, Unavailable("another call of this worker has taken the place of this one"))
        self._calls[call.ticket] = call
        return [*replies, *self.decide(tasks)]

    def give_up(self, member: Member) -> list[Reply]:
        """What a worker had open ends: it has gone on to something else."""
        mine = [call for call in self._calls.values() if call.member is member]
        return self._end(mine, Unavailable("this worker has gone on to something else meanwhile"))

    def pass_by(self, member: Member) -> None:
        """A worker that is idle does not come any more for the groups that others hold pushes of here.

        For those that are yet to come it may: it was idle before them.
        """
        sender = Sender(member.name, member.incarnation)
        groups = [call.message.group for call in self._calls.values() if isinstance(call.message, Push)]
        numbers = [group.number for group in groups if group is not None and sender in group.workers]
        member.group = max([member.group, *numbers])

    def _end(self, calls: Iterable[ParkedCall], error: ParamServerError) -> list[Reply]:
        return [Reply(self._calls.pop(call.ticket).ticket, error) for call in calls]

    def decide(self, tasks: list[Task]) -> list[Reply]:
        """Asks the policy until it lets nobody go any more; answers come last, so that values and versions agree.

        A push is answered in the step that applies it, at the earliest: its arrays are borrowed until its answer.
        """
        served: list[ParkedCall] = []
        while self._calls:
            verdicts = self._policy.decide(self._waiting(), self._view())
            if not verdicts:
                break
            for verdict in verdicts:
                match verdict:
                    case Apply(tickets, scale):
                        self._apply([self._calls[ticket] for ticket in tickets], scale, tasks)
                    case Drop(ticket, reason):
                        self._drop(self._calls[ticket], reason)
                    case Serve(ticket):
                        served.append(self._calls.pop(ticket))
        return [self._serve(call, tasks) for call in served]

    def _waiting(self) -> list[Waiting]:
        """Who waits, as the policy sees it now."""
        waiting = []
        for ticket, call in self._calls.items():
            message = call.message
            if isinstance(message, Push) and call.answer is None:
                waiting.append(Waiting(ticket, call.member.name, False, self._staleness(message), message.group))
            else:
                waiting.append(Waiting(ticket, call.member.name, True))
        return waiting

    def _staleness(self, push: Push) -> int:
        """The most changes that its weights have seen; if all are on other shards, how many updates there were."""
        if push.gradients or push.served_at is None:
            return self._store.staleness(push.gradients)
        return max(0, self.global_step - push.served_at)

    def _view(self) -> View:
        return View(self.global_step, self._members)

    def waits_for(self, worker: str) -> str:
        """Why a push of this worker is held: a sentence; empty if none is."""
        if all(call.member.name != worker for call in self._calls.values()):
            return ""
        waiting, view = self._waiting(), self._view()
        held = [one for one in waiting if one.worker == worker and not one.applied]
        return self._policy.explain(held[0], waiting, view) if held else ""

    def _apply(self, calls: list[ParkedCall], scale: float, tasks: list[Task]) -> None:
        """One update: the mean of these pushes."""
        pushes = [call.message for call in calls if isinstance(call.message, Push) and call.answer is None]
        assert len(pushes) == len(calls), "a policy applies pushes, and each once"
        stalenesses = [self._staleness(push) for push in pushes]
        self._store.update(list(map(self._contribution, pushes)), self.global_step, scale, tasks)
        group = pushes[0].group
        if group is None and len(pushes) > 1:
            group = Group(self.global_step, tuple([push.sender for push in pushes]))
        self.global_step += 1
        for call, push, staleness in zip(calls, pushes, stalenesses, strict=True):
            member = call.member
            member.steps += 1
            member.staleness = staleness
            member.staleness_sum += staleness
            member.loss = member.loss if push.loss is None else push.loss
            member.group = member.group if group is None else group.number
            self.stalenesses.add(staleness)
            self._settle(call, push, Pushed(Outcome.APPLIED, staleness, self.global_step, group=group))
        self.applied += len(pushes)

    def _contribution(self, push: Push) -> list[Contribution]:
        if not self._strength:
            return [(gradient, None) for gradient in push.gradients]
        return [(gradient, self.backups.find(push.sender.worker, gradient)) for gradient in push.gradients]

    def _drop(self, call: ParkedCall, reason: str) -> None:
        message = call.message
        assert isinstance(message, Push), "a policy drops pushes only"
        self.dropped += 1
        call.member.dropped += 1
        self._settle(call, message, Pushed(Outcome.DROPPED, self._staleness(message), self.global_step, reason=reason))

    def _settle(self, call: ParkedCall, push: Push, answer: Pushed) -> None:
        """What became of a push is written down; from now on it waits for its values only."""
        call.answer = answer
        call.member.clock += 1
        self._ledger.record(push.sender, push.sequence, answer)

    def _serve(self, call: ParkedCall, tasks: list[Task]) -> Reply:
        message, settled, room, wire = call.message, call.answer, call.room, call.message.wire
        if isinstance(message, Pull):
            values = self._store.read(message.names, tasks, have=message.have, wire=wire, room=room)
            chosen = self._store.choose(message.choices, tasks, wire=wire, room=room)
            answer: Answer = Pulled(values + chosen, self.global_step)
            if self._strength:
                for choice, value in zip(message.choices, chosen, strict=True):
                    self.backups.keep_choice(message.sender.worker, choice, value, self._store.room)
        else:
            assert settled is not None
            values = self._store.read(message.pull, tasks, have=message.have, wire=wire, room=room)
            outcome, staleness, reason, group = settled.outcome, settled.staleness, settled.reason, settled.group
            answer = Pushed(outcome, staleness, self.global_step, values, reason, group)
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
