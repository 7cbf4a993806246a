"""What stops or changes a job from outside of its training: a worker that stops it, an operator, or a rule."""

from typing import Any

from psserver.core import events
from psserver.core.data.data_queues import DataQueues
from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.minimization.minimizations import Minimizations
from psserver.core.part import Call, Check, Handler, Part, Position
from psserver.core.policies.policy import join_names
from psserver.core.registration import Registration
from psserver.core.updates.pending_calls import PendingCalls
from psserver.core.variables.array_tasks import StepResult
from pswire import messages as ms
from pswire.errors import InvalidMessage, WrongShard


class Interventions(Part):
    """Answers `Stop` and `Intervene`: the end of training, quarantine of workers, and other learning rates."""

    def __init__(
        self,
        shard: int,
        position: Position,
        members: Membership,
        variables: Registration,
        queues: DataQueues,
        minimizations: Minimizations,
        pending: PendingCalls,
    ) -> None:
        self._shard, self._position, self._members, self._variables = shard, position, members, variables
        self._queues, self._minimizations, self._pending = queues, minimizations, pending

    def messages(self) -> dict[type, tuple[Check | None, Handler]]:
        """As `Part.messages`."""
        return {ms.Stop: (self._check_stop, self._stop), ms.Intervene: (self._check_intervene, self._intervene)}

    def state(self) -> dict[str, Any]:
        """As `Part.state`."""
        return {"stopped": self._position.stopped}

    def restore(self, state: ms.ShardState, now: float) -> None:
        """As `Part.restore`."""
        self._position.stopped = state.stopped

    def status(self, asked: ms.Status, now: float) -> dict[str, Any]:
        """As `Part.status`."""
        return {"stopped": self._position.stopped}

    def _check_stop(self, message: ms.Stop, member: Member) -> None:
        if self._shard:
            raise WrongShard(f"this is shard {self._shard}: workers wait for each other, and stop, on shard 0")

    def _stop(self, call: Call[ms.Stop], result: StepResult) -> None:
        if not self._position.stopped:
            reason = call.message.reason or "no reason given"
            self._stop_all(f"{call.member.name}: {reason}", result)
            result.events.append(events.job_stopped(call.member, reason))
        result.reply(call.ticket, ms.Stopped(self._position.stopped))

    def _stop_all(self, reason: str, result: StepResult) -> None:
        """Hand out neither blocks nor portions from now on."""
        self._position.stopped = reason
        self._queues.stop(result)
        self._minimizations.stop(result)

    def _check_intervene(self, message: ms.Intervene, member: None) -> None:
        for worker in (*message.quarantine, *message.release):
            if self._members.get(worker) is None:
                known = join_names([one.name for one in self._members.newest(10)]) or "none yet"
                raise InvalidMessage(f"no worker {worker!r} has joined shard {self._shard}; there are: {known}")
        if message.scale_learning_rate != 1.0:
            self._variables.store.check_scaled(message.scale_learning_rate)

    def _intervene(self, call: Call[ms.Intervene], result: StepResult) -> None:
        message = call.message
        reason = f"{message.by}: {message.reason}"
        if message.stop and not self._shard and not self._position.stopped:
            self._stop_all(reason, result)
            result.events.append(events.job_stopped_by(message.by, message.reason))
        for name in message.release:
            self._members[name].quarantined = ""
            result.events.append(events.released(name, reason))
        for name in message.quarantine:
            self._members[name].quarantined = reason
            result.events.append(events.quarantined(name, reason))
            if not self._pending.follows:
                self._pending.quarantine(self._members[name], result)
        self._minimizations.release(message.quarantine, result)  # also serves those that are in quarantine no more
        if message.scale_learning_rate != 1.0:
            self._scale_learning_rates(message)
            result.events.append(events.learning_rates_scaled(message.scale_learning_rate, reason))
        quarantined = tuple([member.name for member in self._members if member.quarantined])
        result.reply(call.ticket, ms.Intervened(self._position.global_step, quarantined))

    def _scale_learning_rates(self, message: ms.Intervene) -> None:
        for optimizer, names in self._variables.store.scale_learning_rates(message.scale_learning_rate):
            self._variables.note_change(message.by, names, optimizer)

    def quarantines_as_in(self, other: "Interventions") -> list[ms.Intervene]:
        """The messages that put workers into quarantine, or release them, as the other state of this shard has them."""
        changes = []
        for member in self._members:
            known = other._members.get(member.name)
            if known is not None and known.quarantined != member.quarantined:
                by, _, reason = (known.quarantined or member.quarantined).partition(": ")
                names = (member.name,)
                quarantine, release = (names, ()) if known.quarantined else ((), names)
                changes.append(ms.Intervene(by=by, reason=reason, quarantine=quarantine, release=release))
        return changes
