"""Pushes, pulls and assigns as they come: their checks, and their answers where these do not depend on the policy.

All others are pending calls (`psserver.core.updates.pending_calls`).
"""

from typing import Any

from psserver.core import events
from psserver.core.cuts.cuts import Cuts
from psserver.core.data.data_queues import DataQueues
from psserver.core.gaps import check_count
from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.minimization.sums import Sums
from psserver.core.options import ShardOptions
from psserver.core.part import Call, Check, Handler, Part, Position
from psserver.core.updates.pending_calls import PendingCalls
from psserver.core.updates.remote_decisions import RemoteDecisions
from psserver.core.updates.updates import Updates, as_repeated
from psserver.core.variables.array_tasks import StepResult
from psserver.core.variables.store import Store
from pswire import messages as ms
from pswire.errors import InvalidMessage, NotFinite


class UpdateCalls(Part):
    """Answers pushes, pulls and assigns."""

    def __init__(
        self,
        options: ShardOptions,
        position: Position,
        members: Membership,
        store: Store,
        cuts: Cuts,
        queues: DataQueues,
        sums: Sums,
        updates: Updates,
        decisions: RemoteDecisions,
        pending: PendingCalls,
    ) -> None:
        self._options, self._position, self._members, self._store = options, position, members, store
        self._cuts, self._queues, self._sums, self._updates, self._order = cuts, queues, sums, updates, updates.order
        self._decisions, self._pending = decisions, pending

    def messages(self) -> dict[type, tuple[Check | None, Handler]]:
        """As `Part.messages`."""
        return {
            ms.Push: (self._check_push, self._push),
            ms.Pull: (self._check_pull, self._pull),
            ms.Assign: (self._check_assign, self._assign),
        }

    def _check_push(self, push: ms.Push, member: Member) -> None:
        if push.global_step:
            check_count(push, "global step", push.global_step, self._updates.last_step)
        if push.group is not None:
            self._decisions.check_group(push, push.group)
        if push.shards and not 0 < min(push.shards) <= max(push.shards) < self._options.shards:
            raise InvalidMessage(f"a push with parts on shards {push.shards} of {self._options.shards}")
        if push.remote:
            self._decisions.check_remote(push.remote, [one.name for one in push.remote])
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
            self._decisions.check_remote((), assign.remote)
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
                self._pending.abandon(member, result)  # a held push would settle an older number later
                self._updates.settle_empty(call, result)
            elif member.quarantined and not self._pending.follows:
                self._pending.abandon(member, result)  # as above
                self._updates.drop(call, f"quarantine: {member.quarantined}", result)
            elif not member.training:
                if member.name in self._members.progress.stalled:
                    result.events.append(events.pushes_again(member))
                self._members.progress.start(member)
        self._take(call, result)

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
            self._take(call, result)

    def _assign(self, call: Call[ms.Assign], result: StepResult) -> None:
        if self._order is not None:
            self._order.settle(call.message.sender, call.message.sequence)
        self._pending.abandon(call.member, result)  # a held push would settle an older number later
        self._take(call, result)

    def _take(self, call: Call[Any], result: StepResult) -> None:
        """Answer a call at once, as the asynchronous policy would decide, or else add it to the pending ones."""
        pending = self._pending
        if pending.asynchronous and not pending.table and not isinstance(call.message, ms.Assign):
            try:  # the decision of the policy for a single call
                if call.answer is None and isinstance(call.message, ms.Push):
                    self._updates.apply([call], 1.0, result)
            except NotFinite as error:
                result.reply(call.ticket, error)
            else:
                self._updates.serve(call, result)
            return
        pending.add(call, result)
