"""The shard: one state machine that leads each message through the rooms, and does no arithmetic itself.

    message -> membership (who speaks?) -> store (may it be?) -> ledger (seen before?) -> policy (now, later, no?)
            -> store and rules (the change) -> replies

The same messages in the same order give bit-identical variables, slots and replies. Whatever waits, sends,
writes or tells the time lives around it, in `psserver.service` and `psserver.server`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from psserver.core.dataqueue import DataQueues
from psserver.core.ledger import Ledger
from psserver.core.membership import Member, Membership
from psserver.core.policies import Apply, Asynchronous, Drop, Policy, Serve, View, Waiting
from psserver.core.store import Store, check_finite
from pswire.errors import AlreadyRegistered, InvalidMessage, WrongShard
from pswire.messages import (
    Answer,
    Assign,
    Assigned,
    Join,
    Joined,
    Leave,
    Left,
    Message,
    Outcome,
    Pull,
    Pulled,
    Push,
    Pushed,
    Register,
    Registered,
    Renew,
    Renewed,
    Reply,
    Status,
    StatusReport,
    Take,
    Tick,
    VariableStatus,
    WorkerStatus,
)

#: Workers and epochs that a status lists: live workers and what is new first, so that it fits into a message.
MOST_LISTED = 1000

_Seen = TypeVar("_Seen", Pushed, Assigned)


@dataclass(slots=True)
class _ParkedCall:
    """A push or pull that the policy has not let go yet; `answer` is there once a push was applied."""

    waiting: Waiting
    message: Push | Pull
    answer: Pushed | None = None


class Shard:
    """A deterministic machine, not thread-safe. Values in a reply are views of the store, until the next step.

    Args:
        shard: which of the `shards` of the job this is, from 0.
        shards: how many there are.
        lease: seconds of silence after which a worker is taken for dead.
        memory_limit: bytes that values and slots may take; None: no limit.
        policy: who may go on, and whose gradient counts.
    """

    def __init__(
        self,
        shard: int = 0,
        shards: int = 1,
        lease: float = 15.0,
        memory_limit: int | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.shard, self.shards = shard, shards
        self.global_step = 0
        self._repeated = 0
        self._now = 0.0
        self._store = Store(memory_limit)
        self._ledger = Ledger()
        self._members = Membership(lease)
        self._policy: Policy = policy or Asynchronous()
        self._calls: dict[int, _ParkedCall] = {}
        self._queues = DataQueues()
        self._places: dict[str, int] = {}
        self._handlers: dict[type[Message], Callable[[int, Any], list[Reply]]] = {
            Push: self._push,
            Pull: self._pull,
            Take: self._take,
            Assign: self._assign,
            Register: self._register,
            Renew: self._renew,
            Join: self._join,
            Leave: self._leave,
            Status: self._status,
            Tick: self._tick,
        }

    def step(self, ticket: int, message: Message, now: float) -> list[Reply]:
        """Takes one message; returns the replies that it sets free, also those of earlier tickets.

        Never waits: what cannot be answered yet gets its reply from a later step. Raises only errors of the
        family in `pswire.errors`; then nothing has changed.

        Args:
            ticket: the caller's name for this message, unique among those that are open.
            message: what is said.
            now: seconds on a clock that never goes back.
        """
        self.check(message)
        self._check_elements(message)
        self._now = now
        sender = getattr(message, "sender", None)
        if sender is not None:
            self._members.renew(self._members.check(sender), now)
        return self._handlers[type(message)](ticket, message)

    def check(self, message: Message) -> None:
        """Raises what `step` would raise, but for NaN, infinity and row numbers: looks at no element, changes nothing.

        So a server can refuse a large message when it has seen no more than its header.
        """
        sender = getattr(message, "sender", None)
        if sender is not None:
            self._members.check(sender)
        match message:
            case Push():
                self._seen(message, Pushed)
                self._store.check_gradients(message.gradients)
                self._store.check_names(message.pull)
            case Pull():
                self._store.check_names(message.names)
            case Join():
                self._check_shard(message)
                self._members.check_join(message)
            case Register():
                self._check_places(message)
                self._store.check_declarations(message.declarations)
            case Assign():
                self._seen(message, Assigned)
                self._store.check_assignments(message.assignments)
            case Take():
                if self.shard:
                    raise WrongShard(f"this is shard {self.shard}: data queues are kept on shard 0")
                self._queues.check(message.queue)

    def nbytes(self, names: Iterable[str]) -> int:
        """Bytes of the values of these variables; raises `UnknownVariable`."""
        return sum([self._store[name].value.nbytes for name in names])

    # --- membership -----------------------------------------------------------------------------------------------

    def _join(self, ticket: int, message: Join) -> list[Reply]:
        member, new_life = self._members.join(message, self._now)
        joined = Joined(member.incarnation, member.number, self._members.lease, self.global_step)
        return [Reply(ticket, joined), *(self._forget([member]) if new_life else [])]

    def _renew(self, ticket: int, message: Renew) -> list[Reply]:
        return [Reply(ticket, Renewed(self.global_step))]

    def _leave(self, ticket: int, message: Leave) -> list[Reply]:
        member = self._members.check(message.sender)
        member.state = "left"
        return [Reply(ticket, Left()), *self._forget([member])]

    def _tick(self, ticket: int, message: Tick) -> list[Reply]:
        return [*self._forget(self._members.expire(self._now)), *self._queues.explain(self._now)]

    def _forget(self, gone: Collection[Member]) -> list[Reply]:
        """What these had taken is handed out again, and what they waited for forgotten; others may go on by that."""
        names = [member.name for member in gone]
        self._calls = {ticket: call for ticket, call in self._calls.items() if call.waiting.worker not in names}
        return [*self._queues.forget(names), *self._decide()]

    # --- variables ------------------------------------------------------------------------------------------------

    def _register(self, ticket: int, message: Register) -> list[Reply]:
        self._places.update({place.name: place.shard for place in message.places})
        self._store.declare(message.declarations)
        values = self._store.read(declaration.spec.name for declaration in message.declarations)
        return [Reply(ticket, Registered(values, self.global_step))]

    def _pull(self, ticket: int, message: Pull) -> list[Reply]:
        return self._park(_ParkedCall(Waiting(ticket, message.sender.worker, applied=True), message))

    def _push(self, ticket: int, message: Push) -> list[Reply]:
        seen = self._seen(message, Pushed)
        worker = message.sender.worker
        if seen is None:
            staleness = self._store.staleness(message.gradients)
            return self._park(_ParkedCall(Waiting(ticket, worker, applied=False, staleness=staleness), message))
        self._repeated += 1
        if seen.outcome is Outcome.APPLIED:
            seen = dataclasses.replace(seen, outcome=Outcome.REPEATED)
        return self._park(_ParkedCall(Waiting(ticket, worker, applied=True), message, seen))

    def _assign(self, ticket: int, message: Assign) -> list[Reply]:
        seen = self._seen(message, Assigned)
        if seen is not None:
            self._repeated += 1
            return [Reply(ticket, dataclasses.replace(seen, outcome=Outcome.REPEATED))]
        versions = self._store.assign(message.assignments, add=message.add)
        answer = Assigned(Outcome.APPLIED, versions, self.global_step)
        self._ledger.record(message.sender, message.sequence, answer)
        return [Reply(ticket, answer)]

    def _check_elements(self, message: Message) -> None:
        """The one look at every element: NaN, infinity and rows that are not there, before anything is touched."""
        match message:
            case Push() if self._seen(message, Pushed) is None:
                self._store.check_elements(message.gradients)
            case Assign() if self._seen(message, Assigned) is None:
                for assignment in message.assignments:
                    check_finite(assignment.name, assignment.array, "assigned value")
            case Register():
                for declaration in message.declarations:
                    if declaration.value is not None:
                        check_finite(declaration.spec.name, declaration.value, "initial value")

    def _seen(self, message: Push | Assign, kind: type[_Seen]) -> _Seen | None:
        """The answer that this message got before, if it is a retry."""
        seen = self._ledger.answered(message.sender, message.sequence)
        if seen is not None and not isinstance(seen, kind):
            raise InvalidMessage(f"sequence number {message.sequence} was used for another kind of message before")
        return seen

    # --- consistency ----------------------------------------------------------------------------------------------

    def _park(self, call: _ParkedCall) -> list[Reply]:
        """A worker has one call open: what it gave up makes room, or a retry of a held push would make two of it."""
        worker = call.waiting.worker
        for ticket in [ticket for ticket, other in self._calls.items() if other.waiting.worker == worker]:
            del self._calls[ticket]
        self._calls[call.waiting.ticket] = call
        return self._decide()

    def _decide(self) -> list[Reply]:
        """Asks the policy until it lets nobody go any more; answers come last, so that values and versions agree."""
        served: list[_ParkedCall] = []
        while self._calls:
            waiting = [call.waiting for call in self._calls.values()]
            verdicts = self._policy.decide(waiting, View(self.global_step, self._members))
            if not verdicts:
                break
            for verdict in verdicts:
                match verdict:
                    case Apply(ticket):
                        self._apply(self._calls[ticket])
                    case Drop(ticket, reason):
                        self._settle(self._calls[ticket], Outcome.DROPPED, reason)
                    case Serve(ticket):
                        served.append(self._calls.pop(ticket))
        return [self._serve(call) for call in served]

    def _apply(self, call: _ParkedCall) -> None:
        message = call.message
        assert isinstance(message, Push), "a policy applies pushes only"
        assert call.answer is None, "a policy lets a push be applied once"
        member = self._members.check(message.sender)
        self._store.apply(message.gradients, self.global_step)
        self.global_step += 1
        member.steps += 1
        member.staleness = call.waiting.staleness
        member.staleness_sum += call.waiting.staleness
        member.loss = member.loss if message.loss is None else message.loss
        self._settle(call, Outcome.APPLIED)

    def _settle(self, call: _ParkedCall, outcome: Outcome, reason: str = "") -> None:
        """What became of a push is written down; from now on it waits for its values only."""
        assert isinstance(call.message, Push)
        message, waiting = call.message, call.waiting
        call.answer = Pushed(outcome, waiting.staleness, self.global_step, reason=reason)
        call.waiting = Waiting(waiting.ticket, waiting.worker, applied=True)
        self._ledger.record(message.sender, message.sequence, call.answer)

    def _serve(self, call: _ParkedCall) -> Reply:
        if isinstance(call.message, Pull):
            answer: Answer = Pulled(self._store.read(call.message.names), self.global_step)
        else:
            settled = call.answer
            assert settled is not None
            values = self._store.read(call.message.pull)
            answer = Pushed(settled.outcome, settled.staleness, settled.global_step, values, settled.reason)
        return Reply(call.waiting.ticket, answer)

    # --- the data queues ------------------------------------------------------------------------------------------

    def _take(self, ticket: int, message: Take) -> list[Reply]:
        return self._queues.take(ticket, message, self._now)

    # --- what is going on -----------------------------------------------------------------------------------------

    def _status(self, ticket: int, message: Status) -> list[Reply]:
        variables = (VariableStatus(one.spec, one.version, one.updates, one.optimizer) for one in self._store)
        members = sorted(self._members, key=lambda member: (member.state != "live", -member.number))[:MOST_LISTED]
        workers = (self._worker_status(member) for member in sorted(members, key=lambda member: member.number))
        epochs = self._queues.reports()[-MOST_LISTED:]
        report = StatusReport(
            self.shard, self.shards, self.global_step, self._repeated, tuple(variables), tuple(workers), tuple(epochs)
        )
        return [Reply(ticket, report)]

    def _worker_status(self, member: Member) -> WorkerStatus:
        return WorkerStatus(
            member.name,
            member.incarnation,
            member.number,
            member.state,
            member.steps,
            member.staleness,
            member.staleness_sum,
            member.loss,
            self._queues.epoch_of(member.name),
            max(0.0, member.expires - self._now) if member.state == "live" else 0.0,
        )

    def _check_places(self, message: Register) -> None:
        """Two workers that trained a variable of one name on two shards would not notice."""
        for place in message.places:
            known = self._places.get(place.name, place.shard)
            if known != place.shard:
                raise AlreadyRegistered(
                    f"variable {place.name!r} is on shard {known}, worker {message.sender.worker!r} places it on shard "
                    f"{place.shard}: all workers must make the same variables, in the same order"
                )

    def _check_shard(self, message: Join) -> None:
        if (message.shard, message.shards) != (self.shard, self.shards):
            raise WrongShard(
                f"worker {message.worker!r} takes this server for shard {message.shard} of {message.shards}, it is "
                f"shard {self.shard} of {self.shards}: name all servers, in the order of their shards"
            )
