"""Pending calls: pushes that the consistency policy has not released, and calls whose turn has not come.

The policy decides when; `psserver.core.updates.updates` makes the update and the answer.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from psserver.core import events
from psserver.core.cuts.cuts import Cuts
from psserver.core.data.data_queues import DataQueues
from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.members.progress_timeout import ProgressTimeout
from psserver.core.minimization.sums import Sums
from psserver.core.options import ShardOptions
from psserver.core.part import Call, Check, Handler, Part, Position, check_count
from psserver.core.policies.asynchronous import Asynchronous
from psserver.core.policies.policy import Apply, Drop, Policy, PushView, ShardView, join_names
from psserver.core.registration import Registration
from psserver.core.updates.updates import Updates, as_repeated
from psserver.core.variables.array_tasks import StepResult
from psserver.core.waiting import REPLACED, WaitingCalls
from pswire import messages as ms
from pswire.errors import InvalidMessage, NotFinite, Unavailable
from pswire.specs.consistency import Synchronous


class PendingCalls(Part):
    """Answers pushes, pulls and assigns; one of these is pending until the changes before it are settled (`after`).

    A push is held until the policy releases it, which it can once those changes are settled. A shard that `follows` has
    its pushes decided by shard 0.
    """

    def __init__(
        self,
        options: ShardOptions,
        policy: Policy,
        position: Position,
        members: Membership,
        variables: Registration,
        cuts: Cuts,
        queues: DataQueues,
        sums: Sums,
        updates: Updates,
    ) -> None:
        self._options, self._policy, self._position, self._members = options, policy, position, members
        self._invariants, self._store, self._cuts, self._sums = variables.invariants, variables.store, cuts, sums
        self._updates, self._order, self._queues = updates, updates.order, queues
        self._timeout = ProgressTimeout(options.progress_timeout)
        self.follows = bool(options.shard) and options.decides
        self.asynchronous = type(policy) is Asynchronous  # no push is held, and no other call waits for one
        self._waiting = WaitingCalls[int, Any]()  # by ticket

    def messages(self) -> dict[type, tuple[Check | None, Handler]]:
        """As `Part.messages`."""
        return {
            ms.Push: (self._check_push, self._push),
            ms.Pull: (self._check_pull, self._pull),
            ms.Assign: (self._check_assign, self._assign),
        }

    def waiting(self) -> Sequence[Call[Any]]:
        """As `Part.waiting`."""
        return self._waiting.calls

    def forget(self, gone: Sequence[Member], result: StepResult) -> None:
        """End the calls of members that are gone. Other calls may become ready: `decide` follows."""
        self._store.served.forget([member.name for member in gone])
        self._waiting.forget(gone, self._members, result)

    def due(self, now: float) -> dict[str, Any]:
        """As `Part.due`."""
        awaited = {} if self._timeout.seconds is None else self.awaited()
        return {"stalled": self._timeout.stalled(awaited, now)}

    def tick(self, tick: ms.Tick, result: StepResult) -> None:
        """Go on without workers that have stalled."""
        if tick.stalled:
            result.events.extend([events.stalled(member) for member in self._stall(tick.stalled, result)])

    def status(self, asked: ms.Status, now: float) -> dict[str, Any]:
        """As `Part.status`."""
        return {"held": len(self.held_since())}

    # --- pushes, pulls and assigns --------------------------------------------------------------------------------

    def _check_push(self, push: ms.Push, member: Member) -> None:
        if push.global_step:
            check_count(push, "global step", push.global_step, self._updates.last_step)
        if push.group is not None:
            self._check_group(push, push.group)
        if push.shards and not 0 < min(push.shards) <= max(push.shards) < self._options.shards:
            raise InvalidMessage(f"a push with parts on shards {push.shards} of {self._options.shards}")
        if push.remote:
            self._check_remote(push.remote, [one.name for one in push.remote])
        if push.progress:
            self._queues.check_progress(push)
        self._store.check_gradients(push.gradients)
        self._store.check_pull(push, push.pull)

    def _check_pull(self, pull: ms.Pull, member: Member) -> None:
        if pull.of_cut:
            self._cuts.check_pull(pull)
        self._store.check_pull(pull, pull.names, pull.choices)

    def _check_assign(self, assign: ms.Assign, member: Member) -> None:
        if assign.remote:
            self._check_remote((), assign.remote)
        if assign.portions is not None and assign.sequence > member.settled:
            self._sums.check(assign.portions, assign.assignments)
        self._store.check_assignments(assign.assignments)

    def _push(self, call: Call[ms.Push], result: StepResult) -> None:
        push, member = call.message, call.member
        if call.repeated:
            self._repeat(call)
        else:
            if self._order is not None:  # all shards have settled the worker's earlier messages
                self._order.settle(push.sender, push.sequence)
            if not (push.gradients or push.shards or push.group):
                self.abandon(member, result)  # a held push would settle an older number later
                self._updates.settle_empty(call, result)
            elif member.quarantined and not self.follows:
                self.abandon(member, result)  # as above
                self._updates.drop(call, f"quarantine: {member.quarantined}", result)
            elif not member.training:
                if member.name in self._members.progress.stalled:
                    result.events.append(events.pushes_again(member))
                self._members.progress.start(member)
        self._add(call, result)

    def _repeat(self, call: Call[ms.Push]) -> None:
        """Give a push its first answer again; if it has none, it was abandoned, or others went on without it."""
        push, member, answer = call.message, call.member, call.member.answer
        if answer is None:
            reason = "its part came too late: the worker's lease had expired here, or it had abandoned the part"
            step = self._position.global_step
            answer = ms.Pushed(outcome=ms.Outcome.DROPPED, staleness=0, global_step=step, reason=reason)
            self._members.record(member, push.sequence, answer)
            self._members.half_pushes.late_part(member, push.sequence)
        self._updates.repeated += 1
        call.answer, call.magnitudes = as_repeated(answer), {}

    def _pull(self, call: Call[ms.Pull], result: StepResult) -> None:
        if call.message.of_cut:
            self._cuts.pull(call, self._store, result)
        else:
            self._add(call, result)

    def _assign(self, call: Call[ms.Assign], result: StepResult) -> None:
        if self._order is not None:
            self._order.settle(call.message.sender, call.message.sequence)
        self.abandon(call.member, result)  # a held push would settle an older number later
        self._add(call, result)

    def _add(self, call: Call[Any], result: StepResult) -> None:
        """Add a call, and carry out what the policy decides now.

        A worker has one push open. A newer push replaces a held one, which the worker has abandoned or of which it is a
        retry. A request for values is replaced by any newer call, and never replaces a held push: it may be late.
        """
        if self.asynchronous and not self._waiting and not isinstance(call.message, ms.Assign):
            try:  # the decision of the policy for a single call
                if call.answer is None and isinstance(call.message, ms.Push):
                    self._updates.apply([call], 1.0, result)
            except NotFinite as error:
                call.reply(error, result)
            else:
                self._updates.serve(call, result)
            return
        mine = [one for one in self._waiting.calls if one.member is call.member]
        replaced = [one.ticket for one in mine if _is_held(call) or not _is_held(one)]
        self._waiting.end(replaced, Unavailable(REPLACED), result)
        self._waiting.add(call.ticket, call, result)
        self.decide(result)

    # --- what becomes of pending calls ----------------------------------------------------------------------------

    def decide(self, result: StepResult) -> None:
        """Ask the policy until it has no more decisions; values are read last, so that they agree with their versions.

        A push is answered in the step that applies it, at the earliest: its arrays are borrowed until its answer.
        """
        if not self._waiting:
            return
        while True:
            ready = [call for call in self._waiting.calls if not call.message.after or self._in_order(call)]
            assigns = [call for call in ready if isinstance(call.message, ms.Assign)]
            for call in assigns:
                self._make_assign(self._waiting.pop(call.ticket), result)
            if assigns:
                continue  # this may make pushes too late
            held = self._views(ready)
            decisions = self._policy.decide(held, self._view()) if held else []
            if not decisions:
                break
            for decision in decisions:
                match decision:
                    case Apply(tickets, scale):
                        try:
                            self._updates.apply([self._waiting[ticket] for ticket in tickets], scale, result)
                        except NotFinite as error:
                            self._waiting.end(tickets, error, result)
                            break  # the other decisions depend on these calls
                    case Drop(ticket, reason):
                        self._updates.drop(self._waiting[ticket], reason, result)
        for call in ready:
            if not _is_held(call):
                self._updates.serve(self._waiting.pop(call.ticket), result)

    def _make_assign(self, call: Call[ms.Assign], result: StepResult) -> None:
        if call.message.portions is not None:
            self._sums.add(call, call.message.portions, self._updates.frontier, result)
            return
        try:
            self._updates.assign(call, result)
        except NotFinite as error:
            call.reply(error, result)

    def abandon(self, member: Member, result: StepResult) -> None:
        """End the calls of a worker that has sent a newer message."""
        mine = [call.ticket for call in self._waiting.calls if call.member is member]
        self._waiting.end(mine, Unavailable("this worker has sent a newer message in the meantime"), result)

    def quarantine(self, member: Member, result: StepResult) -> None:
        """Wait for no pushes of a worker; one that is held will be dropped when the worker repeats it."""
        held = [call.ticket for call in self._waiting.calls if call.member is member and _is_held(call)]
        self._waiting.end(held, Unavailable("pushes of this worker are dropped from now on: repeat it"), result)
        if member.training:
            self._members.progress.stall(member)
        self.decide(result)

    def _stall(self, names: Iterable[str], result: StepResult) -> list[Member]:
        """Go on without these workers; returns those that were waited for."""
        awaited = self.awaited()
        stalled = [self._members[name] for name in names if name in awaited]
        self._updates.pass_over(
            [change for change in self._missing() if self._members[change.sender.worker] in stalled]
        )
        for member in stalled:
            if not awaited[member.name][0]:
                self._members.progress.stall(member)
        self.decide(result)
        return stalled

    def settle(self, member: Member, sequence: int) -> None:
        """Note that a worker knows the outcome of its messages up to `sequence`, or has abandoned them."""
        sender = ms.Sender(member.name, member.incarnation)
        self._members.settle(sender, sequence)
        if self._order is not None:
            self._order.settle(sender, sequence + 1)
        self._members.half_pushes.settle(member, sequence)

    def newest(self, sender: ms.Sender) -> int:
        """The greatest sequence number that has arrived of this sender."""
        sent = [call.message for call in self._waiting.calls if not isinstance(call.message, ms.Pull)]
        mine: list[int] = [message.sequence for message in sent if message.sender == sender]
        return max([self._members[sender.worker].settled, *mine])

    def forget_order(self, worker: str) -> None:
        """Note that a worker has been gone for so long that no message of it is under way."""
        if self._order is not None:
            self._order.forget(worker)

    # --- what is held, and why ------------------------------------------------------------------------------------

    @property
    def may_be_checked(self) -> bool:
        """Whether the update of a held push may be checked."""
        return any(self._store.is_checked(call.magnitudes) for call in self._waiting.calls)

    def held_names(self) -> set[str]:
        """The variables that pending pushes and assigns change."""
        return {name for call in self._waiting.calls for name in call.magnitudes}

    def held_pushes(self) -> list[ms.Push]:
        """The pushes that are held."""
        return [call.message for call in self._waiting.calls if _is_held(call)]

    def gone_at_cut(self) -> tuple[str, ...]:
        """The workers that late pushes wait for: they were gone when the cut was complete, for no part of them came."""
        held = {push.sender.worker for push in self.held_pushes()}
        return tuple([one.name for one in self._members.live if one.name not in held]) if held else ()

    def holds_push_of(self, member: Member) -> bool:
        """Whether a push of this worker is held."""
        return any(_is_held(call) and call.member is member for call in self._waiting.calls)

    def held_since(self) -> dict[str, float]:
        """The workers of which a push is held, each with when that has come."""
        return {call.member.name: call.since for call in self._waiting.calls if _is_held(call)}

    def awaited(self) -> dict[str, tuple[str, int]]:
        """The live workers that pending calls wait for, each with what for: a step, or a push of its own."""
        if not self._waiting:
            return {}
        held = self._views(self._waiting.calls)
        of_step = self._policy.awaited(held, self._view()) if held else {}
        parts = {change.sender.worker: (change.sender.worker, change.sequence) for change in self._missing()}
        return {name: ("", step) for name, step in of_step.items()} | parts

    def explanations(self) -> Callable[[str], str]:
        """A function that tells why a push of the worker of a name is held: a sentence; empty if none is.

        It is valid until the next change. What is the same for all workers is computed once, here.
        """
        views = {view.worker: view for view in self._views(self._waiting.calls)}
        if not views:
            return lambda worker: ""
        explain = self._policy.explain([*views.values()], self._view())

        def explanation(worker: str) -> str:
            view = views.get(worker)
            if view is None:
                return ""
            after = self._waiting[view.ticket].message.after
            if before := [change.sender.worker for change in after if not self._updates.is_settled(change)]:
                who = join_names(before)
                return f"shard 0 decided changes of {who} before this one, and they have not arrived here yet"
            return explain(view)

        return explanation

    def _view(self) -> ShardView:
        return ShardView(self._position.global_step, self._members, self._updates.is_settled)

    def _views(self, calls: Iterable[Call[Any]]) -> list[PushView]:
        return [
            PushView(call.ticket, call.member.name, self._updates.staleness.of(call), call.message.group, call.norm)
            for call in calls
            if _is_held(call)
        ]

    # --- the order over shards ------------------------------------------------------------------------------------

    def _in_order(self, call: Call[Any]) -> bool:
        """Whether every change before this call is settled here."""
        if not all(self._updates.is_settled(change) for change in call.message.after):
            return False
        self._updates.pass_over(call.message.after)
        return True

    def _missing(self) -> set[ms.ChangeId]:
        """Changes that shard 0 has decided, which pending calls wait for, and which have not arrived."""
        changes: set[ms.ChangeId] = set()
        arrived: set[tuple[ms.Sender, int]] = set()
        for call in self._waiting.calls:
            message = call.message
            changes.update(message.after)
            if _is_held(call):
                arrived.add((message.sender, message.sequence))
                changes.update(() if message.group is None else message.group.members)
        is_settled = self._updates.is_settled
        return {one for one in changes if (one.sender, one.sequence) not in arrived and not is_settled(one)}

    def _check_remote(self, weights: Iterable[ms.RemoteWeights], names: Sequence[str]) -> None:
        if self._order is None:
            raise InvalidMessage(f"{names[0]!r}: this shard does not order changes on other shards")
        self._invariants.check_placed(names)
        self._order.check(weights)

    def _check_group(self, push: ms.Push, group: ms.UpdateGroup) -> None:
        if not self._options.shard:
            raise InvalidMessage("shard 0 decides which pushes make an update: a push to it has no group")
        consistency = self._options.consistency
        may_have = isinstance(consistency, Synchronous) and group.pushes <= consistency.workers
        if group.pushes > len(group.members) and not may_have:
            raise InvalidMessage(f"an update of {group.pushes} pushes, with --consistency {consistency}")
        if not any((one.sender, one.sequence) == (push.sender, push.sequence) for one in self._members_here(group)):
            raise InvalidMessage(
                f"a push of worker {push.sender.worker!r} for update {group.number} of shard 0, which it is not in"
            )

    def here(self, message: ms.Push | ms.Pull | ms.Assign) -> ms.Push | ms.Pull | ms.Assign:
        """The message to this shard, not 0, without the changes that have no part here or are of the same worker."""
        changed: dict[str, Any] = {}
        if message.after:
            others = [one for one in message.after if one.sender.worker != message.sender.worker]
            changed["after"] = self._with_parts_here(others)
        if isinstance(message, ms.Push) and (group := message.group) is not None:
            pushes, members = max(group.pushes, len(group.members)), self._members_here(group)
            changed["group"] = ms.UpdateGroup(number=group.number, members=members, pushes=pushes)
        return dataclasses.replace(message, **changed) if changed else message

    def _members_here(self, group: ms.UpdateGroup) -> tuple[ms.ChangeId, ...]:
        """The pushes of a group that have a part on this shard; all of them if the group names no shards."""
        named = [one for one in group.members if one.shards]
        return self._with_parts_here(named or group.members)

    def _with_parts_here(self, changes: Iterable[ms.ChangeId]) -> tuple[ms.ChangeId, ...]:
        """The changes that have a part on this shard; a change without `shards` has one."""
        here = [change for change in changes if not change.shards or self._options.shard in change.shards]
        return tuple([ms.ChangeId(change.sender, change.sequence) for change in here])


def _is_held(call: Call[Any]) -> bool:
    """Whether it is a push that is still to be applied or dropped."""
    return call.answer is None and isinstance(call.message, ms.Push)
