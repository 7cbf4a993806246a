"""The barrier of a job: workers wait at it until every live worker does."""

from collections.abc import Callable, Collection

from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.policies.policy import join_names
from psserver.core.variables.array_tasks import StepResult
from pswire import messages as ms
from pswire.errors import Unavailable


class Barrier:
    """The calls that wait; those of workers that leave or are lost end, and nobody waits for these any more."""

    def __init__(self, members: Membership, global_step: Callable[[], int]) -> None:
        self._members, self._global_step = members, global_step
        self._calls: dict[str, tuple[int, ms.Barrier]] = {}

    def waiting(self) -> list[tuple[int, ms.Barrier]]:
        """The tickets and messages of the calls, in order."""
        return list(self._calls.values())

    def arrive(self, ticket: int, message: ms.Barrier, member: Member, result: StepResult) -> bool:
        """Let a worker wait, and all of them pass if it was the last; False if it has to wait."""
        if message.number <= member.barriers:  # a retry
            result.replies.append(ms.Reply(ticket, ms.Passed(self._global_step())))
            return True
        if (replaced := self._calls.pop(member.name, None)) is not None:
            error = Unavailable("another call of this worker has replaced this one")
            result.replies.append(ms.Reply(replaced[0], error))
        self._calls[member.name] = ticket, message
        self.release(result)
        return member.name not in self._calls

    def forget(self, workers: Collection[str], result: StepResult) -> None:
        """End the calls of workers that are gone. The others may pass: call `release`."""
        for name in [name for name in self._calls if name in workers]:
            ticket, message = self._calls.pop(name)
            result.replies.append(ms.Reply(ticket, self._members.refusal(message.sender)))

    def release(self, result: StepResult) -> None:
        """Let all pass if every live worker waits."""
        if self._calls and not self._missing():
            passed = ms.Passed(self._global_step())
            for name, (ticket, message) in self._calls.items():
                self._members[name].barriers = message.number
                result.replies.append(ms.Reply(ticket, passed))
            self._calls.clear()

    def explanations(self) -> Callable[[str], str]:
        """A function that tells for whom the worker of a name waits at the barrier; empty if it does not.

        It is valid until the next change.
        """
        if not self._calls:
            return lambda worker: ""
        why = f"the barrier waits for {join_names(self._missing())}"
        return lambda worker: why if worker in self._calls else ""

    def _missing(self) -> list[str]:
        return [member.name for member in self._members.live if member.name not in self._calls]
