"""Pending calls: pushes that the consistency policy has not released, and calls whose turn has not come.

The policy decides when; `psserver.core.updates.updates` makes the update and the answer.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from psserver.core import events
from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.members.progress_timeout import ProgressTimeout
from psserver.core.minimization.sums import Sums
from psserver.core.options import ShardOptions
from psserver.core.part import Call, Part, Position
from psserver.core.policies.asynchronous import Asynchronous
from psserver.core.policies.policy import Apply, Drop, Policy, PushView, ShardView, join_names
from psserver.core.updates.updates import Updates
from psserver.core.variables.array_tasks import StepResult
from psserver.core.variables.store import Store
from psserver.core.waiting import REPLACED, WaitingCalls
from pswire import messages as ms
from pswire.errors import NotFinite, Unavailable


class PendingCalls(Part):
    """The pushes, pulls and assigns in the `table`; one is pending until the changes before it are settled (`after`).

    A push is held until the policy releases it, which it can once those changes are settled. A shard that `follows` has
    its pushes decided by shard 0.
    """

    def __init__(
        self,
        options: ShardOptions,
        policy: Policy,
        position: Position,
        members: Membership,
        store: Store,
        sums: Sums,
        updates: Updates,
    ) -> None:
        self._policy, self._position, self._members = policy, position, members
        self._store, self._sums, self._updates = store, sums, updates
        self._timeout = ProgressTimeout(options.progress_timeout)
        self.follows = options.follows
        self.asynchronous = type(policy) is Asynchronous  # no push is held, and no other call waits for one
        self.table = WaitingCalls[int, Any]()  # by ticket

    def waiting(self) -> Sequence[Call[Any]]:
        """As `Part.waiting`."""
        return self.table.calls

    def forget(self, gone: Sequence[Member], result: StepResult) -> None:
        """End the calls of members that are gone. Other calls may become ready: `decide` follows."""
        self._store.served.forget([member.name for member in gone])
        self.table.forget(gone, self._members, result)

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

    def add(self, call: Call[Any], result: StepResult) -> None:
        """Add a call, and carry out what the policy decides now.

        A worker has one push open. A newer push replaces a held one, which the worker has abandoned or of which it is a
        retry. A request for values is replaced by any newer call, and never replaces a held push: it may be late.
        """
        mine = [one for one in self.table.calls if one.member is call.member]
        replaced = [one.ticket for one in mine if _is_held(call) or not _is_held(one)]
        self.table.end(replaced, Unavailable(REPLACED), result)
        self.table.add(call.ticket, call, result)
        self.decide(result)

    # --- what becomes of pending calls ----------------------------------------------------------------------------

    def decide(self, result: StepResult) -> None:
        """Ask the policy until it has no more decisions; values are read last, so that they agree with their versions.

        A push is answered in the step that applies it, at the earliest: its arrays are borrowed until its answer.
        """
        if not self.table:
            return
        while True:
            ready = [call for call in self.table.calls if not call.message.after or self._in_order(call)]
            assigns = [call for call in ready if isinstance(call.message, ms.Assign)]
            for call in assigns:
                self._make_assign(self.table.pop(call.ticket), result)
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
                            self._updates.apply([self.table[ticket] for ticket in tickets], scale, result)
                        except NotFinite as error:
                            self.table.end(tickets, error, result)
                            break  # the other decisions depend on these calls
                    case Drop(ticket, reason):
                        self._updates.drop(self.table[ticket], reason, result)
        for call in ready:
            if not _is_held(call):
                self._updates.serve(self.table.pop(call.ticket), result)

    def _make_assign(self, call: Call[ms.Assign], result: StepResult) -> None:
        if call.message.portions is not None:
            self._sums.add(call, call.message.portions, self._updates.frontier, result)
            return
        try:
            self._updates.assign(call, result)
        except NotFinite as error:
            result.reply(call.ticket, error)

    def abandon(self, member: Member, result: StepResult) -> None:
        """End the calls of a worker that has sent a newer message."""
        mine = [call.ticket for call in self.table.calls if call.member is member]
        self.table.end(mine, Unavailable("this worker has sent a newer message in the meantime"), result)

    def quarantine(self, member: Member, result: StepResult) -> None:
        """Wait for no pushes of a worker; one that is held will be dropped when the worker repeats it."""
        held = [call.ticket for call in self.table.calls if call.member is member and _is_held(call)]
        self.table.end(held, Unavailable("pushes of this worker are dropped from now on: repeat it"), result)
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

    def newest(self, sender: ms.Sender) -> int:
        """The greatest sequence number that has arrived of this sender."""
        sent = [call.message for call in self.table.calls if not isinstance(call.message, ms.Pull)]
        mine: list[int] = [message.sequence for message in sent if message.sender == sender]
        return max([self._members[sender.worker].settled, *mine])

    # --- what is held, and why ------------------------------------------------------------------------------------

    @property
    def may_be_checked(self) -> bool:
        """Whether the update of a held push may be checked."""
        return any(self._store.is_checked(call.magnitudes) for call in self.table.calls)

    def held_names(self) -> set[str]:
        """The variables that pending pushes and assigns change."""
        return {name for call in self.table.calls for name in call.magnitudes}

    def held_pushes(self) -> list[ms.Push]:
        """The pushes that are held."""
        return [call.message for call in self.table.calls if _is_held(call)]

    def gone_at_cut(self) -> tuple[str, ...]:
        """The workers that late pushes wait for: they were gone when the cut was complete, for no part of them came."""
        held = {push.sender.worker for push in self.held_pushes()}
        return tuple([one.name for one in self._members.live if one.name not in held]) if held else ()

    def holds_push_of(self, member: Member) -> bool:
        """Whether a push of this worker is held."""
        return any(_is_held(call) and call.member is member for call in self.table.calls)

    def held_since(self) -> dict[str, float]:
        """The workers of which a push is held, each with when that has come."""
        return {call.member.name: call.since for call in self.table.calls if _is_held(call)}

    def awaited(self) -> dict[str, tuple[str, int]]:
        """The live workers that pending calls wait for, each with what for: a step, or a push of its own."""
        if not self.table:
            return {}
        held = self._views(self.table.calls)
        of_step = self._policy.awaited(held, self._view()) if held else {}
        parts = {change.sender.worker: (change.sender.worker, change.sequence) for change in self._missing()}
        return {name: ("", step) for name, step in of_step.items()} | parts

    def explanations(self) -> Callable[[str], str]:
        """A function that tells why a push of the worker of a name is held: a sentence; empty if none is.

        It is valid until the next change. What is the same for all workers is computed once, here.
        """
        views = {view.worker: view for view in self._views(self.table.calls)}
        if not views:
            return lambda worker: ""
        explain = self._policy.explain([*views.values()], self._view())

        def explanation(worker: str) -> str:
            view = views.get(worker)
            if view is None:
                return ""
            after = self.table[view.ticket].message.after
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
        for call in self.table.calls:
            message = call.message
            changes.update(message.after)
            if _is_held(call):
                arrived.add((message.sender, message.sequence))
                changes.update(() if message.group is None else message.group.members)
        is_settled = self._updates.is_settled
        return {one for one in changes if (one.sender, one.sequence) not in arrived and not is_settled(one)}


def _is_held(call: Call[Any]) -> bool:
    """Whether it is a push that is still to be applied or dropped."""
    return call.answer is None and isinstance(call.message, ms.Push)
