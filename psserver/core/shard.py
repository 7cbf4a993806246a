"""The shard: one state machine that leads each message through the rooms, and does no arithmetic itself.

    message -> membership (who speaks?) -> store (may it be?) -> ledger (seen before?) -> policy (now, later, no?)
            -> store and rules (the change) -> replies

The same messages in the same order give bit-identical variables, slots and replies. Whatever waits, sends,
writes or tells the time lives around it, in `psserver.runtime.executor` and `psserver.rpc.server`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from psserver.core import events
from psserver.core.array_tasks import ArrayTask, StepResult, TasksPending
from psserver.core.data_queue import DataQueues
from psserver.core.events import Event
from psserver.core.members.deduplication import DeduplicationTable
from psserver.core.members.job_invariants import JobInvariants
from psserver.core.members.membership import JobEnd, Member, Membership
from psserver.core.metrics import TrafficMeter
from psserver.core.pending_calls import PendingCall, PendingCalls
from psserver.core.policies import Policy, policy_for
from psserver.core.policies.update_order import UpdateOrder
from psserver.core.status import MOST_LISTED, variable_status, worker_status
from psserver.core.variables import inspection
from psserver.core.variables.guarded_updates import Magnitudes
from psserver.core.variables.reply_sizes import answer_bytes
from psserver.core.variables.store import Store
from pswire.errors import InvalidMessage, OutOfOrder, ParamServerError, WrongShard
from pswire.messages import (
    Assign,
    Assigned,
    Change,
    Join,
    Joined,
    LastPush,
    Leave,
    Left,
    Message,
    Outcome,
    Pull,
    Push,
    Pushed,
    Register,
    Registered,
    RemoteWeights,
    Renew,
    Renewed,
    Reply,
    Status,
    StatusReport,
    Take,
    Tick,
    Tune,
    Tuned,
    UpdateGroup,
    WorkerStatus,
)
from pswire.messages.sizes import Allocator, tensor_bytes
from pswire.specs.consistency import (
    Asynchronous,
    Consistency,
    DelayCompensation,
    IgnoreStaleness,
    StalenessSpec,
    Synchronous,
)

_Seen = TypeVar("_Seen", Pushed, Assigned, Tuned)


class Shard:
    """A deterministic machine, not thread-safe. Arrays in a reply are copies, read-only.

    Args:
        shard: which of the `shards` of the job this is, from 0.
        shards: how many there are.
        lease: seconds of silence after which a worker is taken for dead.
        memory_limit: bytes that values and slots may take; None: no limit.
        consistency: who may go on, and whose gradient counts.
        staleness: what is done about the staleness of a push.
        policy: another than these two ask for.
        identity: that of the state, which is drawn at random when it begins, and belongs to it as its variables do: a
            shard that takes up an earlier state has that one's. 0: none.
        one_job: whether it serves one job, and not the next one where nobody lives (`Membership`).
    """

    def __init__(
        self,
        shard: int = 0,
        shards: int = 1,
        lease: float = 15.0,
        memory_limit: int | None = None,
        consistency: Consistency = Asynchronous(),  # noqa: B008 - frozen
        staleness: StalenessSpec = IgnoreStaleness(),  # noqa: B008
        policy: Policy | None = None,
        identity: int = 0,
        one_job: bool = False,
    ) -> None:
        self.shard, self.shards = shard, shards
        self._consistency, self._handling = consistency, staleness
        self._repeated = self._late_parts = 0
        self._now = 0.0
        self._ledger = DeduplicationTable()
        self._agreement = JobInvariants(shard, shards, identity)
        self._members = Membership(lease, has_chief=not shard, one_job=one_job)
        self._strength = strength = staleness.strength if isinstance(staleness, DelayCompensation) else 0.0
        self._store = Store(memory_limit, strength)
        self._holds = policy is not None or not isinstance(consistency, Asynchronous)
        chosen = policy or policy_for(consistency, staleness, shard, shards)
        orders = not shard and shards > 1 and (consistency.orders or staleness.orders)
        self._decisions = UpdateOrder() if orders else None
        self._room = PendingCalls(chosen, self._store, self._ledger, self._members, strength, self._decisions)
        self._told: list[Event] = []  # in the step that is being taken
        self._queues = DataQueues(self._told, self._members.is_chief)
        self._meter = TrafficMeter()
        self._changes: list[Change] = []
        self._tasks: list[ArrayTask] = []  # of the step that is being taken
        self._lent: Allocator | None = None  # by who has sent its message
        self._magnitudes: Magnitudes = {}
        self._handlers: dict[type[Message], Callable[[int, Any], list[Reply]]] = {
            Push: self._push,
            Pull: self._pull,
            Take: self._take,
            Assign: self._assign,
            Tune: self._tune,
            Register: self._register,
            Renew: self._renew,
            Join: self._join,
            Leave: self._leave,
            Status: self._status,
            Tick: self._tick,
        }

    @property
    def global_step(self) -> int:
        """How many updates there were: pushes that were applied, those of a group as one."""
        return self._room.global_step

    @property
    def job_end(self) -> JobEnd | None:
        """When the last worker went, and how the job ended; None while any is live (`Membership.job_end`)."""
        return self._members.job_end

    def step(
        self,
        ticket: int,
        message: Message,
        now: float,
        *,
        magnitudes: Magnitudes | None = None,
        allocator: Allocator | None = None,
        settled: bool = True,
    ) -> StepResult:
        """Takes one message; returns the replies that it sets free, also of earlier tickets, and what is to be done.

        Never waits: what cannot be answered yet gets its reply from a later step. Raises only errors of the
        family in `pswire.errors`; then nothing has changed. The message's arrays are borrowed until the tasks are done
        that use them: those of this step, or for a push that is held those of the step that answers it.

        Args:
            ticket: the caller's name for this message, unique among those that are open.
            message: what is said.
            now: seconds on a clock that never goes back.
            magnitudes: what `inspect` has returned before, if it was called.
            allocator: memory for the values of the answer, whenever it comes; borrowed as long as the arrays, and
                not used where delay is compensated, for what a worker was served is kept then.
            settled: all tasks of earlier steps have been run. Then those of this one may be among them on return.

        Raises:
            TasksPending: a change is guarded (`psserver.core.variables.guarded_updates`), and not `settled`; to be
            called again when it is. ParamServerError: the refusal.
        """
        self.check(message)
        if magnitudes is None:
            magnitudes = self.inspect(message)
        guards = self._store.guards
        if not settled and (self._room.guarded or inspection.is_guarded(guards, message, magnitudes)):
            raise TasksPending
        self._magnitudes, guards.settled = magnitudes, settled
        self._now = now
        self._lent = None if self._strength else allocator
        sender = getattr(message, "sender", None)
        if sender is not None:
            self._members.renew(self._members[sender.worker], now)
        self._meter.tick(now)
        before = self._room.applied
        replies = self._handlers[type(message)](ticket, message)
        answers = [reply.answer for reply in replies if not isinstance(reply.answer, ParamServerError)]
        bytes_out = sum([tensor_bytes(answer) for answer in answers])
        self._meter.count(self._room.applied - before, tensor_bytes(message), bytes_out)
        tasks, self._tasks, self._lent, self._magnitudes = self._tasks, [], None, {}
        if not self._told:
            return StepResult(replies, tasks)
        told = tuple(self._told)
        self._told.clear()  # the same list: the queues write to it too
        return StepResult(replies, tasks, told)

    def inspect(self, message: Message) -> Magnitudes:
        """The one look at every element: raises for NaN, infinity, and rows that are not there; changes nothing.

        Returns the magnitudes of what the message brings, by the names of variables.

        Call `check` first. May run beside steps, in another thread: it reads the message, and of the shard only what
        never changes.
        """
        return inspection.inspect(self._store, message)

    def check(self, message: Message) -> None:
        """Raises what `step` would raise, but for NaN, infinity and row numbers: looks at no element, changes nothing.

        So a server can refuse a large message when it has seen no more than its header.
        """
        sender = getattr(message, "sender", None)
        if sender is not None:
            self._members.check(sender)
        match message:
            case Push():
                self._check_group(message)
                self._check_elsewhere(message.remote, [one.name for one in message.remote])
                self._seen(message, Pushed)
                self._store.check_gradients(message.gradients)
                self._store.check_names(message.pull, message.known_versions, message.encoding)
            case Pull():
                self._store.check_names(message.names, message.known_versions, message.encoding)
                self._store.check_choices(message.choices)
            case Tune():
                self._seen(message, Tuned)
                self._store.check_tune(message)
            case Join():
                self._agreement.check_join(message)
                self._members.check_join(message)
            case Register():
                self._agreement.check_register(message)
                if isinstance(self._consistency, Synchronous):
                    self._store.check_room_for(self._consistency.workers, message.declarations)
                self._store.check_declarations(message.declarations, dry_run=message.dry_run)
            case Assign():
                self._check_elsewhere((), message.remote)
                self._seen(message, Assigned)
                self._store.check_assignments(message.assignments)
            case Take():
                if self.shard:
                    raise WrongShard(f"this is shard {self.shard}: data queues are kept on shard 0")
                self._queues.check(message.queue)

    def answer_bytes(self, message: Message, *, at_once: bool = False) -> int:
        """The most bytes of values that the answer to `message` brings, if its step is taken later; or if `at_once`.

        What the asker has counts for nothing only if the step is taken at once, by a shard that never holds anybody:
        by then it may have been modified otherwise. Raises `UnknownVariable` or `InvalidMessage`.
        """
        return answer_bytes(self._store, message, modified=not at_once or self._holds)

    # --- membership -----------------------------------------------------------------------------------------------

    def _join(self, ticket: int, message: Join) -> list[Reply]:
        was_live = self._members.lives(message.worker)
        member, new_life = self._members.join(message, self._now)
        if new_life or not was_live:
            self._told.append(events.joined(member) if new_life else events.came_back(member))
        job = self._members.lease, self.global_step, str(self._consistency), str(self._handling)
        chief, state = self._members.is_chief(member.name), self._agreement.identity
        joined = Joined(member.incarnation, member.number, *job, chief, state)
        return [Reply(ticket, joined), *(self._forget([member]) if new_life else [])]

    def _renew(self, ticket: int, message: Renew) -> list[Reply]:
        member = self._members[message.sender.worker]
        self._members.renew(member, self._now, message.tensor_transport)
        member.half_pushes = max(member.half_pushes, message.half_pushes)
        freed = self._settle(member, message) if message.idle or message.settled else []
        place = self._room.waits_for(member.name), self._members.is_chief(member.name)
        return [Reply(ticket, Renewed(self.global_step, *place)), *freed]

    def _settle(self, member: Member, message: Renew) -> list[Reply]:
        """What the worker has given up ends, and if it is idle nobody waits for it; unless it has sent more since."""
        if message.settled and message.settled < self._room.newest(message.sender):
            return []
        self._room.settle(message.sender, message.settled)
        _note_settled(member, message.settled)
        if message.idle:
            return self._rest(member)
        return [*self._room.give_up(member), *self._room.decide(self._tasks)]

    def _rest(self, member: Member, *, without_work: bool = False) -> list[Reply]:
        """Nobody waits for it any more, and it not for a push that it has given up."""
        self._members.rest(member, without_work=without_work)
        return [*self._room.give_up(member), *self._room.decide(self._tasks)]

    def _leave(self, ticket: int, message: Leave) -> list[Reply]:
        member = self._members[message.sender.worker]
        self._members.leave(member, self._now, failed=message.failed, trained=self.global_step > 0)
        self._told.append(events.left(member, failed=message.failed))
        return [Reply(ticket, Left()), *self._forget([member])]

    def _tick(self, ticket: int, message: Tick) -> list[Reply]:
        lost = self._members.expire(self._now)
        self._told += [events.lost(member, self._members.lease) for member in lost]
        return [*self._forget(lost), *self._queues.explain(self._now)]

    def _forget(self, gone: Collection[Member]) -> list[Reply]:
        """What these had taken is handed out again, and what they waited for forgotten; others may go on by that."""
        names = [member.name for member in gone]
        replies = [*self._room.forget(names), *self._queues.forget(names, self._members.refusal)]
        self._members.work(self._queues.holders())
        return [*replies, *self._room.decide(self._tasks)]

    # --- variables ------------------------------------------------------------------------------------------------

    def _register(self, ticket: int, message: Register) -> list[Reply]:
        if message.dry_run:
            return [Reply(ticket, Registered((), self.global_step))]
        self._agreement.keep(message)
        self._store.declare(message.declarations, self._tasks, self._magnitudes)
        names = [one.spec.name for one in message.declarations if not self._store.is_table(one)]
        values = self._store.read(names, self._tasks, allocator=self._lent)
        self._room.note_served(message.sender.worker, values)
        return [Reply(ticket, Registered(values, self.global_step, self._room.frontier))]

    def _pull(self, ticket: int, message: Pull) -> list[Reply]:
        member = self._members[message.sender.worker]
        return self._room.park(PendingCall(ticket, message, member, self._lent), self._tasks)

    def _push(self, ticket: int, message: Push) -> list[Reply]:
        seen = self._seen(message, Pushed)
        member, sender = self._members[message.sender.worker], message.sender
        if seen is None and message.sequence > self._ledger.reached(sender):
            self._members.enter(member)
            self._begin_change(message)
            call = PendingCall(ticket, message, member, self._lent, magnitudes=self._magnitudes)
            return self._room.park(call, self._tasks)
        if seen is None:
            reason = "its part came too late: the worker's lease had ended here, or it had given the part up"
            seen = Pushed(Outcome.DROPPED, 0, self.global_step, reason=reason)
            self._ledger.record(sender, message.sequence, seen)
            self._late_parts += _note_settled(member, message.sequence)
        self._repeated += 1
        if seen.outcome is Outcome.APPLIED:
            seen = dataclasses.replace(seen, outcome=Outcome.REPEATED)
        return self._room.park(PendingCall(ticket, message, member, self._lent, seen), self._tasks)

    def _assign(self, ticket: int, message: Assign) -> list[Reply]:
        seen = self._seen(message, Assigned)
        if seen is not None:
            return self._repeat(ticket, seen)
        member = self._members[message.sender.worker]
        self._begin_change(message)
        given_up = self._room.give_up(member)  # or the ledger would go back to it
        call = PendingCall(ticket, message, member, magnitudes=self._magnitudes)
        return [*given_up, *self._room.park(call, self._tasks)]

    def _begin_change(self, message: Push | Assign) -> None:
        """A worker that sends a new message has had its earlier ones settled on all shards."""
        if self._decisions is not None:
            self._decisions.settle(message.sender, message.sequence)

    def _tune(self, ticket: int, message: Tune) -> list[Reply]:
        seen = self._seen(message, Tuned)
        if seen is not None:
            return self._repeat(ticket, seen)
        optimizer = self._store.tune(message)
        change = Change(self.global_step, message.sender.worker, message.names, optimizer)
        self._changes = [*self._changes, change][-MOST_LISTED:]
        given_up = self._room.give_up(self._members[message.sender.worker])  # or the ledger would go back to it
        self._ledger.record(message.sender, message.sequence, Tuned(Outcome.APPLIED, self.global_step))
        return [*given_up, Reply(ticket, Tuned(Outcome.APPLIED, self.global_step))]

    def _repeat(self, ticket: int, seen: Assigned | Tuned) -> list[Reply]:
        self._repeated += 1
        return [Reply(ticket, dataclasses.replace(seen, outcome=Outcome.REPEATED))]

    def _seen(self, message: Push | Assign | Tune, kind: type[_Seen]) -> _Seen | None:
        """The answer that this message got before, if it is a retry."""
        seen = self._ledger.answered(message.sender, message.sequence)
        if seen is not None and not isinstance(seen, kind):
            raise InvalidMessage(f"sequence number {message.sequence} was used for another kind of message before")
        if seen is None and kind is not Pushed and message.sequence <= self._ledger.reached(message.sender):
            raise OutOfOrder(
                f"message {message.sequence} of worker {message.sender.worker!r} was given up: it is too late"
            )
        return seen

    # --- the data queues ------------------------------------------------------------------------------------------

    def _take(self, ticket: int, message: Take) -> list[Reply]:
        replies = self._queues.take(ticket, message, self._now)
        self._members.work(self._queues.holders())
        if all(reply.ticket != ticket for reply in replies):  # it waits for examples: nobody shall wait for it
            replies += self._rest(self._members[message.sender.worker], without_work=True)
        return replies

    # --- what is going on -----------------------------------------------------------------------------------------

    def _status(self, ticket: int, message: Status) -> list[Reply]:
        members = sorted(self._members, key=lambda member: (member.state != "live", -member.number))[:MOST_LISTED]
        report = StatusReport(
            self.shard,
            self.shards,
            self.global_step,
            self._repeated,
            tuple(map(variable_status, self._store)),
            tuple(self._worker(member) for member in sorted(members, key=lambda member: member.number)),
            tuple(self._queues.reports()[-MOST_LISTED:]),
            self._room.dropped,
            self._store.nbytes + self._room.backups.nbytes,
            str(self._consistency),
            str(self._handling),
            self._meter.traffic(self._now),
            self._room.stalenesses.summary(),
            tuple(self._changes),
            self._members.half_pushes + self._late_parts,
            self._members.last_pushes(MOST_LISTED),
        )
        return [Reply(ticket, report)]

    def _worker(self, member: Member) -> WorkerStatus:
        place = self._room.waits_for(member.name), self._members.is_chief(member.name)
        return worker_status(member, self._queues.epoch_of(member.name), self._now, *place)

    def _check_elsewhere(self, weights: Iterable[RemoteWeights], names: Sequence[str]) -> None:
        """Only shard 0 of a job whose changes have an order keeps books of variables on other shards."""
        if names and self._decisions is None:
            raise InvalidMessage(f"{names[0]!r}: this shard has no order of changes on other shards to keep")
        if self._decisions is not None:
            self._agreement.check_placed(names)
            self._decisions.check(weights)

    def _check_group(self, message: Push) -> None:
        """Only shard 0 makes groups, and a worker brings those that it is in."""
        group = message.group
        if group is not None and (not self.shard or not _is_member(message, group)):
            raise InvalidMessage(
                f"a push of worker {message.sender.worker!r} for update {group.number} of shard 0, which it is not in"
                if self.shard
                else "shard 0 decides which pushes make an update: a push to it has no group"
            )


def _is_member(push: Push, group: UpdateGroup) -> bool:
    return any((one.sender, one.sequence) == (push.sender, push.sequence) for one in group.members)


def _note_settled(member: Member, sequence: int) -> bool:
    """Notes that the worker's messages up to this one do not count as left half by its death; False if it was noted."""
    if sequence <= (member.last_push.sequence if member.last_push else 0):
        return False
    member.last_push = LastPush(member.name, member.incarnation, sequence, ())
    return True
