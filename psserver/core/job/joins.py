"""Workers that join, and the jobs that begin with one of them or with `psserver reset`.

A job that begins is an effect: the shard makes all parts anew, and hands the message to the new ones.
"""

from psserver.core import events
from psserver.core.data.data_queues import DataQueues
from psserver.core.gaps import check_count
from psserver.core.job.jobs import Jobs, joined_note
from psserver.core.members.membership import Membership
from psserver.core.minimization.minimizations import Minimizations
from psserver.core.options import ShardOptions
from psserver.core.part import Call, Check, Handler, Part, Position
from psserver.core.policies.policy import join_names
from psserver.core.registration import Registration
from psserver.core.timelines import Timeline
from psserver.core.updates.updates import Updates
from psserver.core.variables.array_tasks import StepResult
from pswire import messages as ms
from pswire.errors import Unavailable


class Joins(Part):
    """Answers `Join` and `Reset`. `lost_pushes` counts those that workers had acknowledged and that were given up."""

    def __init__(
        self,
        options: ShardOptions,
        position: Position,
        timeline: Timeline,
        members: Membership,
        jobs: Jobs,
        variables: Registration,
        queues: DataQueues,
        minimizations: Minimizations,
        updates: Updates,
    ) -> None:
        self._options, self._position, self._timeline = options, position, timeline
        self._members, self._jobs, self._invariants = members, jobs, variables.invariants
        self._queues, self._minimizations, self._updates = queues, minimizations, updates
        self.lost_pushes = 0

    def messages(self) -> dict[type, tuple[Check | None, Handler]]:
        """As `Part.messages`."""
        return {ms.Join: (self._check_join, self._join), ms.Reset: (self._check_reset, self._reset)}

    def state(self) -> dict[str, int]:
        """As `Part.state`."""
        return {"lost_pushes": self.lost_pushes}

    def restore(self, state: ms.ShardState, now: float) -> None:
        """As `Part.restore`."""
        self.lost_pushes = state.lost_pushes

    def _check_join(self, message: ms.Join, member: None) -> None:
        known = self._members.get(message.worker)
        settled, steps = (known.settled, known.steps) if known is not None and known.is_of(message) else (0, 0)
        last = self._members.last_possible_incarnation(self._timeline.number)
        check_count(message, "incarnation", message.incarnation, last)
        check_count(message, "settled sequence number", message.settled, settled)
        check_count(message, "number of pushes", message.steps, steps)
        check_count(message, "job", message.job.number, self._jobs.present.number)
        self._invariants.check_join(message)
        self._timeline.check_join(message, again=known is not None and known.must_join and known.is_of(message))
        self._jobs.begun_by(message, self._members, self._jobs.state_of(self._members, self._queues))
        self._members.check_join(message)

    def _join(self, call: Call[ms.Join], result: StepResult) -> None:
        message, members, position = call.message, self._members, self._position
        before = result.ended or self._jobs.report(position, members, self._queues)
        if result.ended is None and (begun := self._jobs.begun_by(message, members, before.state)) is not None:
            result.begins = begun
            return
        if result.ended is None and before.state not in ("running", "empty"):
            position.stopped = ""  # the job goes on
        self._jobs.note_workers(message)
        known = members.get(message.worker)
        was_live, goes_back = (known.state == "live", known.must_join) if known is not None else (False, False)
        member, new_incarnation = members.join(message, result.now, self._timeline.number)
        if message.steps > member.steps:
            self.lost_pushes += message.steps - member.steps
            result.events.append(events.lost_pushes(member, message.steps - member.steps))
            member.steps = message.steps  # counted once, also if this shard goes back again
        if message.settled:
            self._updates.settle(member, message.settled)
        if new_incarnation or not was_live:
            result.events.append(events.joined(member, new_incarnation=new_incarnation))
        joined = ms.Joined(
            incarnation=member.incarnation,
            number=member.number,
            lease=members.lease,
            global_step=position.global_step,
            consistency=str(self._options.consistency),
            staleness=str(self._options.staleness),
            chief=members.chief.is_chief(member.name),
            state=self._invariants.identity,
            timeline=self._timeline.number,
            cut=position.cut,
            steps=member.steps,
            job=self._jobs.present,
            note="" if self._options.shard or message.resume else joined_note(before, self._jobs.present),
            stopped=position.stopped,
        )
        result.reply(call.ticket, joined)
        if member.quarantined and new_incarnation and not self._options.follows:
            members.progress.stall(member)
        if new_incarnation:
            result.gone.append(member)  # its earlier incarnation
        elif goes_back:  # it does not know of the block that it had at the cut
            self._queues.forget([member], result)
            self._minimizations.forget([member], result)

    def _check_reset(self, message: ms.Reset, member: None) -> None:
        present = self._jobs.present
        check_count(message, "job", message.number, present.number)
        live = [one.name for one in self._members.live]
        if message.number > present.number and live and not message.force:
            raise Unavailable(f"{present} is running with {join_names(live)}: stop it first, or use --force")

    def _reset(self, call: Call[ms.Reset], result: StepResult) -> None:
        if call.message.number > self._jobs.present.number:
            result.begins = ms.Job(call.message.number)
        else:
            result.reply(call.ticket, ms.Emptied(self._jobs.present))
