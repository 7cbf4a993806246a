"""Calls that wait for their answers: one table, of which each part that lets calls wait has its own."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.part import Call
from psserver.core.variables.array_tasks import StepResult
from pswire.errors import ParamServerError, Unavailable

K = TypeVar("K")
M = TypeVar("M")

#: Seconds after which a call that waits for other workers is answered with their names, so that its worker can report
#: them; it asks again.
MAX_WAIT_SECONDS = 2.0


class WaitingCalls(dict[K, Call[M]]):
    """The calls that wait, each under a key, in the order in which they came."""

    @property
    def calls(self) -> Sequence[Call[M]]:
        """All calls, in order."""
        return list(self.values())

    def add(self, key: K, call: Call[M], result: StepResult) -> None:
        """Let a call wait; an earlier one with its key ends, and it gets the place of that one."""
        if (replaced := self.get(key)) is not None:
            result.reply(replaced.ticket, Unavailable(REPLACED))
        self[key] = call

    def replace(self, key: K, result: StepResult) -> None:
        """End the call with this key, if there is one: a newer call of its worker has come."""
        self.end([key] if key in self else (), Unavailable(REPLACED), result)

    def answer(self, key: K, answer: Any, result: StepResult) -> None:  # noqa: ANN401
        """Answer the call with this key, which waits no longer."""
        result.reply(self.pop(key).ticket, answer)

    def end(self, keys: Iterable[K], error: ParamServerError, result: StepResult) -> None:
        """Answer the calls with these keys by an error."""
        for key in keys:
            self.answer(key, error, result)

    def forget(self, gone: Iterable[Member], members: Membership, result: StepResult) -> None:
        """End the calls of members that are gone, each as a message of it would be refused."""
        if not self:
            return
        ended = {member.name for member in gone}  # of earlier incarnations too
        for key in [key for key, call in self.items() if call.member.name in ended]:
            call: Any = self.pop(key)
            result.reply(call.ticket, members.refusal(call.message.sender))

    def overdue(self, now: float) -> list[K]:
        """The keys of the calls that have waited for long."""
        return [key for key, call in self.items() if now - call.since >= MAX_WAIT_SECONDS]


#: Why a call ends when another one comes.
REPLACED = "another call of this worker has replaced this one"
