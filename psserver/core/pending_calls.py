"""Pending calls: pushes that the consistency policy has not released, and calls whose turn has not come.

A push becomes an update and an answer here. The policy decides when; the store and the update rules do the work.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from psserver.core.cuts import Cuts
from psserver.core.data_queues import DataQueues
from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.metrics import EXACT, rounded
from psserver.core.minimization.minimizations import Minimizations
from psserver.core.policies.asynchronous import Asynchronous
from psserver.core.policies.policy import Apply, Drop, Policy, PushView, ShardView, join_names
from psserver.core.policies.update_order import UpdateOrder
from psserver.core.variables.array_tasks import StepResult
from psserver.core.variables.element_checks import Magnitudes
from psserver.core.variables.store import Store
from pswire import messages as ms
from pswire.errors import NotFinite, ParamServerError, Unavailable
from pswire.messages import ShardState


@dataclass(slots=True, eq=False)
class PendingCall:
    """A push, pull or assign without a reply.

    It is pending until the changes before it are settled (`after`), and a push then until the policy releases it. It
    has come at the time `since`. `answer` is that of a push that was applied or dropped, without values; `allocator`
    makes memory for these. The `staleness` of a push was computed after so many changes (`known_after`). `norm` is that
    of its gradients, if there is a limit; they are multiplied by `factor`, and `clipped` says why.
    """

    ticket: int
    message: ms.Push | ms.Pull | ms.Assign
    member: Member
    allocator: ms.Allocator | None = None
    answer: ms.Pushed | None = None
    magnitudes: Magnitudes = field(default_factory=dict)
    norm: float = 0.0
    factor: float = 1.0
    clipped: str = ""
    staleness: int = 0
    known_after: int = -1
    since: float = 0.0

    @property
    def held(self) -> bool:
        """Whether it is a push that is still to be applied or dropped."""
        return isinstance(self.message, ms.Push) and self.answer is None


class PendingCalls:
    """The pending calls of a shard; `global_step` counts updates, `applied` and `dropped` pushes."""

    def __init__(
        self,
        policy: Policy,
        store: Store,
        members: Membership,
        cuts: Cuts,
        queues: DataQueues,
        minimizations: Minimizations,
        order: UpdateOrder | None = None,
    ) -> None:
        self._policy, self._store, self._members, self._update_order = policy, store, members, order
        self._cuts, self._queues, self._minimizations = cuts, queues, minimizations
        self.asynchronous = type(policy) is Asynchronous  # no push is held, and no other call waits for one
        self._calls: dict[int, PendingCall] = {}
        self._changes = 0  # of variables since this object was made
        # of the last update, as schedules count: pushes of the job before it, as far as known here
        self.last_step = -1
        self.global_step = self.applied = self.dropped = self.clipped = 0
        self.stalenesses: defaultdict[int, int] = defaultdict(int)  # applied pushes by staleness, `rounded` if large

    def waiting(self) -> list[tuple[int, ms.Push | ms.Pull | ms.Assign]]:
        """The tickets and messages of all pending calls, in order."""
        return [(call.ticket, call.message) for call in self._calls.values()]

    def restore(self, state: ShardState) -> None:
        """Continue from the counts of a state."""
        self.global_step, self.applied, self.dropped = state.global_step, state.applied, state.dropped
        self.last_step, self.clipped = state.last_step, state.clipped
        self.stalenesses.update({one.staleness: one.pushes for one in state.stalenesses})

    @property
    def frontier(self) -> ms.Frontier | None:
        """How far changes are decided; None where this shard does not order them."""
        return None if self._update_order is None else self._update_order.frontier()

    @property
    def may_be_checked(self) -> bool:
        """Whether the update of a held push may be checked."""
        return any(self._store.is_checked(call.magnitudes) for call in self._calls.values())

    def held_names(self) -> set[str]:
        """The variables that pending pushes and assigns change."""
        return {name for call in self._calls.values() for name in call.magnitudes}

    def add(self, call: PendingCall, result: StepResult) -> None:
        """Add a call, and carry out what the policy decides now.

        A worker has one push open. A newer push replaces a held one, which the worker has abandoned or of which it is a
        retry. A request for values is replaced by any newer call, and never replaces a held push: it may be late.
        """
        if self.asynchronous and not self._calls and not isinstance(call.message, ms.Assign):
            try:  # the decision of the policy for a single call
                if call.answer is None and isinstance(call.message, ms.Push):
                    self._apply([call], 1.0, result)
            except NotFinite as error:
                result.replies.append(ms.Reply(call.ticket, error))
            else:
                self._serve(call, result)
            return
        open_calls = [one for one in self._calls.values() if one.member is call.member and (call.held or not one.held)]
        self._end(open_calls, Unavailable("another call of this worker has replaced this one"), result)
        self._calls[call.ticket] = call
        self.decide(result)

    def settle_empty(self, call: PendingCall, result: StepResult) -> None:
        """Settle a push that changes no variable on any shard; from now on it is pending for its values only.

        It is no step of its worker, so the policy is not asked: it moves neither the global step nor a clock, and is
        none of the gradients of an update. Its examples are done.
        """
        push, member = call.message, call.member
        assert isinstance(push, ms.Push)
        self.abandon(member, result)  # a held push would settle an older number later
        member.steps += 1
        member.counts.empty += 1
        if push.loss is not None:
            member.loss = push.loss
            member.counts.add_loss(push.loss)
        if push.cut < self._cuts.late_below:
            self._cuts.keep_late(push)
        cut = self._cuts.number
        self._set_answer(
            call,
            push,
            ms.Pushed(
                outcome=ms.Outcome.APPLIED, staleness=0, global_step=self.global_step, frontier=self.frontier, cut=cut
            ),
        )

    def quarantine(self, member: Member, result: StepResult) -> None:
        """Wait for no pushes of a worker; one that is held will be dropped when the worker repeats it."""
        held = [call for call in self._calls.values() if call.member is member and call.held]
        self._end(held, Unavailable("pushes of this worker are dropped from now on: repeat it"), result)
        if member.training:
            self._members.progress.stall(member)
        self.decide(result)

    def drop_quarantined(self, call: PendingCall, result: StepResult) -> None:
        """Drop a push of a worker that is in quarantine, whatever the policy; it is pending for its values only."""
        self.abandon(call.member, result)  # a push that was held before would settle an older number later
        self._drop(call, f"quarantine: {call.member.quarantined}", result)

    def abandon(self, member: Member, result: StepResult) -> None:
        """End the calls of a worker that has sent a newer message."""
        mine = [call for call in self._calls.values() if call.member is member]
        self._end(mine, Unavailable("this worker has sent a newer message in the meantime"), result)

    def forget(self, workers: Collection[str], result: StepResult) -> None:
        """End the calls of workers that are gone. Other calls may become ready: call `decide`."""
        self._store.served.forget(workers)
        for call in [call for call in self._calls.values() if call.member.name in workers]:
            self._end([call], self._members.refusal(call.message.sender), result)

    def awaited(self) -> dict[str, tuple[str, int]]:
        """The live workers that pending calls wait for, each with what for: a step, or a push of its own."""
        if not self._calls:
            return {}
        shard = ShardView(self.global_step, self._members, self._settled)
        held = self._held_pushes(self._calls.values())
        of_step = self._policy.awaited(held, shard) if held else {}
        parts = {change.sender.worker: (change.sender.worker, change.sequence) for change in self._missing()}
        return {name: ("", step) for name, step in of_step.items()} | parts

    def stall(self, names: Iterable[str], result: StepResult) -> list[Member]:
        """Go on without these workers; returns those that were waited for."""
        awaited = self.awaited()
        stalled = [self._members[name] for name in names if name in awaited]
        self._pass_over([change for change in self._missing() if self._members[change.sender.worker] in stalled])
        for member in stalled:
            if not awaited[member.name][0]:
                self._members.progress.stall(member)
        self.decide(result)
        return stalled

    def newest(self, sender: ms.Sender) -> int:
        """The greatest sequence number that has arrived of this sender."""
        newest = self._members[sender.worker].settled
        for call in self._calls.values():
            if not isinstance(call.message, ms.Pull) and call.message.sender == sender:
                newest = max(newest, call.message.sequence)
        return newest

    def settle(self, sender: ms.Sender, sequence: int) -> None:
        """Note that the worker knows the outcome of its messages up to `sequence`, or has abandoned them."""
        self._members.settle(sender, sequence)
        if self._update_order is not None:
            self._update_order.settle(sender, sequence + 1)

    def holds_push_of(self, member: Member) -> bool:
        """Whether a push of this worker is held."""
        return any(call.held and call.member is member for call in self._calls.values())

    def held_since(self) -> dict[str, float]:
        """The workers of which a push is held, each with when that has come."""
        return {call.member.name: call.since for call in self._calls.values() if call.held}

    def explanations(self) -> Callable[[str], str]:
        """A function that tells why a push of the worker of a name is held: a sentence; empty if none is.

        It is valid until the next change. What is the same for all workers is computed once, here.
        """
        views = {view.worker: view for view in self._held_pushes(self._calls.values())}
        if not views:
            return lambda worker: ""
        explain = self._policy.explain([*views.values()], ShardView(self.global_step, self._members, self._settled))

        def explanation(worker: str) -> str:
            view = views.get(worker)
            if view is None:
                return ""
            after = self._calls[view.ticket].message.after
            if before := [change.sender.worker for change in after if not self._settled(change)]:
                who = join_names(before)
                return f"shard 0 decided changes of {who} before this one, and they have not arrived here yet"
            return explain(view)

        return explanation

    def decide(self, result: StepResult) -> None:
        """Ask the policy until it has no more decisions; values are read last, so that they agree with their versions.

        A push is answered in the step that applies it, at the earliest: its arrays are borrowed until its answer.
        """
        while True:
            ready = [call for call in self._calls.values() if not call.message.after or self._in_order(call)]
            assigns = [call for call in ready if isinstance(call.message, ms.Assign)]
            for call in assigns:
                self._assign(call, result)
            if assigns:
                continue  # this may make pushes too late
            held = self._held_pushes(ready)
            shard = ShardView(self.global_step, self._members, self._settled)
            decisions = self._policy.decide(held, shard) if held else []
            if not decisions:
                break
            for decision in decisions:
                match decision:
                    case Apply(tickets, scale):
                        calls = [self._calls[ticket] for ticket in tickets]
                        try:
                            self._apply(calls, scale, result)
                        except NotFinite as error:
                            self._end(calls, error, result)
                            break  # the other decisions depend on these calls
                    case Drop(ticket, reason):
                        self._drop(self._calls[ticket], reason, result)
        for call in ready:
            if not call.held:
                del self._calls[call.ticket]
                self._serve(call, result)

    def _end(self, calls: Iterable[PendingCall], error: ParamServerError, result: StepResult) -> None:
        for call in calls:
            del self._calls[call.ticket]
            result.replies.append(ms.Reply(call.ticket, error))

    # --- the order over shards ------------------------------------------------------------------------------------

    def _in_order(self, call: PendingCall) -> bool:
        """Whether every change before this call is settled here."""
        if not all(self._settled(change) for change in call.message.after):
            return False
        self._pass_over(call.message.after)
        return True

    def _missing(self) -> set[ms.ChangeId]:
        """Changes that shard 0 has decided, which pending calls wait for, and which have not arrived."""
        changes: set[ms.ChangeId] = set()
        arrived: set[tuple[ms.Sender, int]] = set()
        for call in self._calls.values():
            message = call.message
            changes.update(message.after)
            if isinstance(message, ms.Push) and call.held:
                arrived.add((message.sender, message.sequence))
                changes.update(() if message.group is None else message.group.members)
        return {one for one in changes if (one.sender, one.sequence) not in arrived and not self._settled(one)}

    def _settled(self, change: ms.ChangeId) -> bool:
        sender = change.sender
        return not self._members.is_live(sender) or self._members[sender.worker].settled >= change.sequence

    def _pass_over(self, changes: Iterable[ms.ChangeId]) -> None:
        """Skip changes that have not arrived; if they arrive later, they are refused."""
        for change in changes:
            self._members.settle(change.sender, change.sequence)

    # --- decisions ------------------------------------------------------------------------------------------------

    def _held_pushes(self, calls: Iterable[PendingCall]) -> list[PushView]:
        views = []
        for call in calls:
            push = call.message
            if isinstance(push, ms.Push) and call.answer is None:
                views.append(
                    PushView(call.ticket, call.member.name, self._staleness(call, push), push.group, call.norm)
                )
        return views

    def _staleness(self, call: PendingCall, push: ms.Push) -> int:
        """The most changes that the weights of a gradient have had since they were served, on whichever shard."""
        if call.known_after != self._changes:
            call.known_after, call.staleness = self._changes, self._computed_staleness(push)
        return call.staleness

    def _computed_staleness(self, push: ms.Push) -> int:
        staleness, variables = 0, self._store.variables
        for gradient in push.gradients:
            staleness = max(staleness, variables[gradient.name].version - gradient.version)
        if self._update_order is None or not push.remote:
            return staleness
        return max(staleness, self._update_order.staleness(push.remote))

    def _apply(self, calls: Sequence[PendingCall], scale: float, result: StepResult) -> None:
        """Make one update of the mean of these pushes; if it raises `NotFinite`, none, and nothing has changed."""
        pushes, stalenesses, step = [], [], self.last_step + 1
        for call in calls:
            push = call.message
            assert isinstance(push, ms.Push), "a policy applies pushes"
            assert call.answer is None, "a policy applies each push once"
            pushes.append(push)
            stalenesses.append(self._staleness(call, push))
            step = max(step, push.global_step)
        magnitudes = calls[0].magnitudes if len(calls) == 1 else _largest(calls)
        of_group = 0 if pushes[0].group is None else pushes[0].group.pushes
        factors = [call.factor for call in calls] if any(call.clipped for call in calls) else []
        self._store.update(pushes, max(len(pushes), of_group), step, scale, magnitudes, result, factors)
        self.last_step = step
        self._changes += 1
        group, frontier = pushes[0].group, None
        if group is not None:
            self._pass_over(group.members)
        if self._update_order is not None or len(pushes) > 1:
            changes = tuple([ms.ChangeId(push.sender, push.sequence, push.shards) for push in pushes])
            if group is None and len(pushes) > 1:
                group = ms.UpdateGroup(number=self.global_step, members=changes)
            if self._update_order is not None:
                frontier = self._update_order.add(changes, [one.name for push in pushes for one in push.remote])
        self.global_step += 1
        for call, push, staleness in zip(calls, pushes, stalenesses, strict=True):
            member = call.member
            member.steps += 1
            member.staleness = staleness
            member.staleness_sum += staleness
            if (loss := push.loss) is not None:
                member.loss = loss
                member.counts.add_loss(loss)
            member.counts.add_gradients(push.gradients, call.magnitudes, self._store.variables, self.global_step)
            if push.shards:
                member.last_push = ms.LastPush(
                    worker=member.name, incarnation=member.incarnation, sequence=push.sequence, shards=push.shards
                )
            self.stalenesses[staleness if staleness < EXACT else rounded(staleness)] += 1
            if push.cut < self._cuts.late_below:
                self._cuts.keep_late(push)
            cut = self._cuts.number
            if call.clipped:
                self.clipped += 1
                member.clipped += 1
            outcome, step = ms.Outcome.APPLIED, self.global_step
            self._record(
                call,
                push,
                ms.Pushed(
                    outcome=outcome,
                    staleness=staleness,
                    global_step=step,
                    values=(),
                    reason=call.clipped,
                    group=group,
                    frontier=frontier,
                    cut=cut,
                ),
                result,
            )
        self.applied += len(pushes)

    def _drop(self, call: PendingCall, reason: str, result: StepResult) -> None:
        push = call.message
        assert isinstance(push, ms.Push), "a policy drops pushes only"
        self.dropped += 1
        call.member.dropped += 1
        call.member.counts.drop_reason = reason
        staleness, frontier = self._staleness(call, push), self.frontier
        cut, outcome, step = self._cuts.number, ms.Outcome.DROPPED, self.global_step
        self._record(
            call,
            push,
            ms.Pushed(
                outcome=outcome,
                staleness=staleness,
                global_step=step,
                values=(),
                reason=reason,
                group=None,
                frontier=frontier,
                cut=cut,
            ),
            result,
        )

    def _record(self, call: PendingCall, push: ms.Push, answer: ms.Pushed, result: StepResult) -> None:
        """Settle a push that was a step of its worker."""
        call.member.clock += 1
        if result.now > call.since:
            call.member.counts.waited += result.now - call.since
        self._set_answer(call, push, answer)

    def _set_answer(self, call: PendingCall, push: ms.Push, answer: ms.Pushed) -> None:
        """Settle a push, and note that its examples are done; from now on it is pending for its values only."""
        call.answer = answer
        if push.progress:
            self._queues.note(push)
        self._members.record(call.member, push.sequence, answer)

    def _assign(self, call: PendingCall, result: StepResult) -> None:
        message = call.message
        assert isinstance(message, ms.Assign)
        del self._calls[call.ticket]
        if message.portions is not None:
            self._add_to_sum(call, message, message.portions, result)
            return
        try:
            versions = self._store.assign(message, call.magnitudes, result)
        except NotFinite as error:
            result.replies.append(ms.Reply(call.ticket, error))
            return
        self._changes += 1
        frontier = None
        if self._update_order is not None:
            change = ms.ChangeId(message.sender, message.sequence, message.shards)
            frontier = self._update_order.add([change], message.remote)
        if message.cut < self._cuts.late_below:
            self._cuts.keep_late(message)
        answer = ms.Assigned(
            outcome=ms.Outcome.APPLIED, versions=versions, global_step=self.global_step, frontier=frontier
        )
        self._members.record(call.member, message.sequence, answer)
        result.replies.append(ms.Reply(call.ticket, answer))

    def _add_to_sum(
        self, call: PendingCall, message: ms.Assign, portions: ms.CountedPortions, result: StepResult
    ) -> None:
        """Add gradients to the sum of an evaluation, and count their portions; or drop them."""
        worker = message.sender.worker
        counted = self._minimizations.has_all(worker, portions)
        reason = "" if counted else self._minimizations.refusal(worker, portions)
        outcome = ms.Outcome.DROPPED if reason else ms.Outcome.REPEATED if counted else ms.Outcome.APPLIED
        if outcome is ms.Outcome.APPLIED:
            self._store.add_to_sum(message.assignments, result)
            if message.cut < self._cuts.late_below:
                self._cuts.keep_late(message)
        answer = ms.Assigned(
            outcome=outcome, versions=(), global_step=self.global_step, frontier=self.frontier, reason=reason
        )
        self._members.record(call.member, message.sequence, answer)
        result.replies.append(ms.Reply(call.ticket, answer))
        if outcome is ms.Outcome.APPLIED:
            self._minimizations.count(worker, portions, result)

    def _serve(self, call: PendingCall, result: StepResult) -> None:
        message, settled = call.message, call.answer
        assert not isinstance(message, ms.Assign), "an assign is answered when it is made"
        values = self._store.read(message, result, call.allocator)
        answer: ms.Pulled | ms.Pushed
        if settled is None:
            answer = ms.Pulled(values, self.global_step, self.frontier)
        else:
            outcome, staleness, reason = settled.outcome, settled.staleness, settled.reason
            group, frontier, cut = settled.group, settled.frontier, settled.cut
            answer = ms.Pushed(
                outcome=outcome,
                staleness=staleness,
                global_step=self.global_step,
                values=values,
                reason=reason,
                group=group,
                frontier=frontier,
                cut=cut,
            )
        result.replies.append(ms.Reply(call.ticket, answer))


def _largest(calls: Iterable[PendingCall]) -> Magnitudes:
    """The largest magnitude of each variable's gradients."""
    largest: dict[str, float] = {}
    for call in calls:
        for name, magnitude in call.magnitudes.items():
            largest[name] = max(largest.get(name, 0.0), magnitude)
    return largest
