"""Who takes part in the job, and what each worker waits for: heartbeats, departures and leases.

A `Join` may begin another job, and so is the shard's own.
"""

from collections.abc import Callable, Container
from typing import Any

from psserver.core import events
from psserver.core.cuts.cuts import Cuts
from psserver.core.data.data_queues import DataQueues
from psserver.core.gaps import check_count
from psserver.core.job.barrier import Barrier
from psserver.core.job.jobs import Jobs
from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.part import MAX_LISTED, Call, Check, Handler, Part, Position
from psserver.core.registration import Registration
from psserver.core.status import detail, worker_status
from psserver.core.updates.pending_calls import PendingCalls
from psserver.core.updates.updates import Updates
from psserver.core.variables.array_tasks import StepResult
from pswire import messages as ms

#: What a stalled worker and its row of the status are told.
_STALLED = "not waited for: it exceeded --progress-timeout, and counts again with its next push"


class Attendance(Part):
    """Answers `Renew` and `Leave`, and says which leases have expired."""

    def __init__(
        self,
        position: Position,
        members: Membership,
        jobs: Jobs,
        variables: Registration,
        cuts: Cuts,
        queues: DataQueues,
        updates: Updates,
        pending: PendingCalls,
        barrier: Barrier,
    ) -> None:
        self._position, self._members, self._jobs, self._variables = position, members, jobs, variables
        self._cuts, self._queues, self._updates = cuts, queues, updates
        self._pending, self._barrier = pending, barrier
        self._explanations: tuple[Callable[[str], str], Callable[[str], str]] | None = None
        self._explained_at = -1  # the number of changes (`Position`) for which the explanations hold

    def messages(self) -> dict[type, tuple[Check | None, Handler]]:
        """As `Part.messages`."""
        return {ms.Renew: (self._check_renew, self._renew), ms.Leave: (None, self._leave)}

    def state(self) -> dict[str, Any]:
        """As `Part.state`."""
        return {
            "members": self._members.state(),
            "job": self._jobs.present,
            "jobs": self._jobs.earlier,
            "awaited": self._jobs.awaited,
        }

    def restore(self, state: ms.ShardState, now: float) -> None:
        """As `Part.restore`."""
        self._members.restore(state.members, now)
        self._jobs.restore(state.job, state.jobs, state.awaited)

    def due(self, now: float) -> dict[str, Any]:
        """As `Part.due`."""
        members, end = self._members, self._members.job_end
        gives_up = end is not None and self._jobs.awaits(members) and end.since + members.lease < now
        return {"lost": members.expired(now), "gives_up": gives_up}

    def tick(self, tick: ms.Tick, result: StepResult) -> None:
        """End the membership of workers whose leases have expired, and the wait for others that have not come."""
        if tick.lost:
            chief = self._members.chief.state()
            lost = self._members.expire(tick.lost, result.now)
            result.events.extend([events.lost(member, self._members.lease) for member in lost])
            self._note_chief(chief, result)
            result.gone += lost
        if tick.gives_up:
            result.events.append(events.awaited_no_longer(self._jobs.present, self._members.joined, self._jobs.awaited))
            self._jobs.awaited = 0
            self._members.note_job_end(result.now)  # those that wait for the next session join now

    def _check_renew(self, message: ms.Renew, member: Member) -> None:
        check_count(message, "settled sequence number", message.settled, member.settled)
        check_count(message, "number of half-applied pushes", message.half_pushes, member.half_pushes)

    def _renew(self, call: Call[ms.Renew], result: StepResult) -> None:
        message, member, settled = call.message, call.member, call.message.settled
        self._members.renew(member, result.now, message.tensor_transport)
        member.half_pushes = max(member.half_pushes, message.half_pushes)  # heartbeats may arrive out of order
        # a heartbeat from before the worker's last messages does not abandon them
        if (message.idle or settled) and not (settled and settled < self._pending.newest(message.sender)):
            self._position.changes += 1
            self._updates.settle(member, settled)
            if message.idle:
                self._members.progress.finish(member)
            self._pending.abandon(member, result)
            self._pending.decide(result)
        renewed = ms.Renewed(
            global_step=self._position.global_step,
            waiting_for=self._waits_for(member),
            chief=self._members.chief.is_chief(member.name),
            cut=self._position.cut,
            stopped=self._position.stopped,
            push_held=self._cuts.decides and self._pending.holds_push_of(member),
        )
        result.replies.insert(0, ms.Reply(call.ticket, renewed))

    def _leave(self, call: Call[ms.Leave], result: StepResult) -> None:
        message, member, members = call.message, call.member, self._members
        chief = members.chief.state()
        finished = self._position.global_step > 0 and not message.failed
        members.leave(member, result.now, failed=message.failed, done=finished or message.done)
        result.events.append(events.left(member, failed=message.failed))
        self._note_chief(chief, result)
        result.reply(call.ticket, ms.Left(members.done))
        result.gone.append(member)

    def _note_chief(self, before: ms.Sender | None, result: StepResult) -> None:
        """Say so if another worker is the chief now."""
        now = self._members.chief.state()
        if before is not None and now is not None and now != before:
            result.events.append(events.chief_moved(before.worker, now.worker))

    def _waits_for(self, member: Member) -> str:
        if self._explanations is None or self._explained_at != self._position.changes:
            self._explained_at = self._position.changes
            self._explanations = self._pending.explanations(), self._barrier.explanations()
        of_push, of_barrier = self._explanations
        stalled = member.state == "live" and member.name in self._members.progress.stalled
        apart = f"nobody: its pushes are dropped, {member.quarantined}" if member.quarantined else _STALLED
        return of_push(member.name) or of_barrier(member.name) or (apart if stalled or member.quarantined else "")

    # --- status ---------------------------------------------------------------------------------------------------

    def status(self, asked: ms.Status, now: float) -> dict[str, Any]:
        """As `Part.status`."""
        members, variables = self._members, self._variables.store.variables
        newest, held = members.newest(MAX_LISTED), self._pending.held_since()
        between_blocks = self._queues.between_blocks()
        return {
            "workers": tuple([self._row(one, now, held.get(one.name), between_blocks) for one in newest]),
            "half_pushes": members.half_pushes.count,
            "last_pushes": members.half_pushes.last_pushes(MAX_LISTED),
            "jobs": (*self._jobs.earlier, self._jobs.report(self._position, members, self._queues)),
            "totals": ms.Totals(
                variables=len(variables), workers=members.joined, live=members.live_count, queues=self._queues.count
            ),
            "detail": detail(newest, list(variables), self._updates.staleness.counts) if asked.detail else None,
        }

    def _row(
        self, one: Member, now: float, held_since: float | None, between_blocks: Container[str]
    ) -> ms.WorkerStatus:
        return worker_status(
            one,
            now,
            epoch=self._queues.epoch_of(one.name),
            between_blocks=one.name in between_blocks,
            waiting_for=self._waits_for(one),
            chief=self._members.chief.is_chief(one.name),
            held_since=held_since,
        )
