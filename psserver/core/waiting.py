"""Calls that wait for their answers: one table, of which each part that lets calls wait has its own."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

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


class WaitingCalls(Generic[K, M]):
    """The calls that wait, each under a key, in the order in which they came."""

    def __init__(self) -> None:
        self._calls: dict[K, Call[M]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[K]:
        return iter(self._calls)

    def __contains__(self, key: object) -> bool:
        return key in self._calls

    def __getitem__(self, key: K) -> Call[M]:
        return self._calls[key]

    def get(self, key: K) -> Call[M] | None:
        """The call with this key, if one waits."""
        return self._calls.get(key)

    @property
    def calls(self) -> Sequence[Call[M]]:
        """All calls, in order."""
        return list(self._calls.values())

    def add(self, key: K, call: Call[M], result: StepResult) -> None:
        """Let a call wait; an earlier one with its key ends, and it gets the place of that one."""
        if (replaced := self._calls.get(key)) is not None:
            replaced.reply(Unavailable(REPLACED), result)
        self._calls[key] = call

    def replace(self, key: K, result: StepResult) -> None:
        """End the call with this key, if there is one: a newer call of its worker has come."""
        self.end([key] if key in self._calls else (), Unavailable(REPLACED), result)

    def answer(self, key: K, answer: Any, result: StepResult) -> None:  # noqa: ANN401
        """Answer the call with this key, which waits no longer."""
        self._calls.pop(key).reply(answer, result)

    def remove(self, key: K) -> Call[M]:
        """Take the call with this key out, to be answered."""
        return self._calls.pop(key)

    def end(self, keys: Iterable[K], error: ParamServerError, result: StepResult) -> None:
        """Answer the calls with these keys by an error."""
        for key in keys:
            self.answer(key, error, result)

    def forget(self, gone: Iterable[Member], members: Membership, result: StepResult) -> None:
        """End the calls of members that are gone, each as a message of it would be refused."""
        if not self._calls:
            return
        ended = {member.name for member in gone}  # of earlier incarnations too
        for key in [key for key, call in self._calls.items() if call.member.name in ended]:
            call: Any = self._calls.pop(key)
            call.reply(members.refusal(call.message.sender), result)

    def overdue(self, now: float) -> list[K]:
        """The keys of the calls that have waited for long."""
        return [key for key, call in self._calls.items() if now - call.since >= MAX_WAIT_SECONDS]


#: Why a call ends when another one comes.
REPLACED = "another call of this worker has replaced this one"
