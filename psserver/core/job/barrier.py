"""The barrier of a job: workers wait at it until every live worker does."""

from collections.abc import Callable, Sequence
from typing import Any

from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.part import Call, Check, Handler, Part, Position
from psserver.core.policies.policy import join_names
from psserver.core.variables.array_tasks import StepResult
from psserver.core.waiting import WaitingCalls
from pswire import messages as ms
from pswire.errors import WrongShard


class Barrier(Part):
    """The calls that wait, by worker; those of workers that leave or are lost end, and nobody waits for these."""

    def __init__(self, shard: int, position: Position, members: Membership) -> None:
        self._shard, self._position, self._members = shard, position, members
        self._waiting = WaitingCalls[str, ms.Barrier]()

    def messages(self) -> dict[type, tuple[Check | None, Handler]]:
        """As `Part.messages`."""
        return {ms.Barrier: (self._check, self._arrive)}

    def waiting(self) -> Sequence[Call[Any]]:
        """As `Part.waiting`."""
        return self._waiting.calls

    def forget(self, gone: Sequence[Member], result: StepResult) -> None:
        """End the calls of members that are gone, and let the others pass if these wait for nobody else."""
        self._waiting.forget(gone, self._members, result)
        self._release(result)

    def _check(self, message: ms.Barrier, member: Member) -> None:
        if self._shard:
            raise WrongShard(f"this is shard {self._shard}: workers wait for each other, and stop, on shard 0")

    def _arrive(self, call: Call[ms.Barrier], result: StepResult) -> None:
        """Let a worker wait, and all of them pass if it was the last."""
        member = call.member
        if call.message.number <= member.barriers:  # a retry
            result.reply(call.ticket, ms.Passed(self._position.global_step))
            return
        self._waiting.add(member.name, call, result)
        self._release(result)
        if member.name in self._waiting:
            result.idle.append(member)

    def _release(self, result: StepResult) -> None:
        """Let all pass if every live worker waits."""
        if self._waiting and not self._missing():
            for call in self._waiting.calls:
                call.member.barriers = call.message.number
                self._waiting.answer(call.member.name, ms.Passed(self._position.global_step), result)

    def explanations(self) -> Callable[[str], str]:
        """A function that tells for whom the worker of a name waits at the barrier; empty if it does not.

        It is valid until the next change.
        """
        if not self._waiting:
            return lambda worker: ""
        why = f"the barrier waits for {join_names(self._missing())}"
        return lambda worker: why if worker in self._waiting else ""

    def _missing(self) -> list[str]:
        return [member.name for member in self._members.live if member.name not in self._waiting]
