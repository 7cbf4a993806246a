"""What all parts of a shard have in common: the calls that they answer, and the questions that the shard asks each.

A part answers messages of some classes. It reads the parts below it (see the layers in `pyproject.toml`); what a
message means for parts above it, or for all, is an effect in the `StepResult`, which the shard carries out after the
handler.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from psserver.core.members.member import Member
from psserver.core.variables.array_tasks import StepResult
from psserver.core.variables.element_checks import Magnitudes
from pswire import messages as ms

M = TypeVar("M")

#: Workers, epochs and changes that a status lists, live workers and the newest first, so that it fits into a message.
MAX_LISTED = 1000


@dataclass(slots=True, eq=False)
class Call(Generic[M]):
    """A message that is answered now, or in a later step, while it waits; its answer names the `ticket`.

    Attributes:
        member: the worker that sends; None for a message of no worker.
        since: the time at which it came.
        repeated: it was settled before, and its first answer may not have arrived.
        allocator: memory for the values of its answer.
        magnitudes: of its arrays, each gradient multiplied by the `factor`.
        norm: of its gradients, if there is a limit; they are multiplied by `factor`, and `clipped` says why.
        answer: that of a push which was applied or dropped, without values.
        staleness: of a push, as it was after so many changes of variables (`known_after`).
    """

    ticket: int
    message: M
    member: Any = None
    since: float = 0.0
    repeated: bool = False
    allocator: ms.Allocator | None = None
    magnitudes: Magnitudes = field(default_factory=dict)
    norm: float = 0.0
    factor: float = 1.0
    clipped: str = ""
    answer: ms.Pushed | None = None
    staleness: int = 0
    known_after: int = -1


@dataclass(slots=True)
class Position:
    """How far the job is, as answers of several parts say it; each number is counted by one part.

    `global_step`: updates applied, those of a group once. `cut`: the number of the last cut that the shard has seen.
    `stopped`: why the job was stopped; "": it was not. `changes`: messages that may have changed what others wait for.
    """

    global_step: int = 0
    cut: int = 0
    stopped: str = ""
    changes: int = 0


Handler: TypeAlias = Callable[[Any, StepResult], None]
Check: TypeAlias = Callable[[Any, Any], None]


class Part:
    """One concern of a shard. Here are the answers of a part that has nothing to say to a question."""

    def messages(self) -> dict[type, tuple[Check | None, Handler]]:
        """The classes of messages that this part answers, each with its check and its handler.

        A check refuses a message of a member before anything has changed: it looks at no element of an array.
        The handler takes the `Call` then, and never fails.
        """
        return {}

    def state(self) -> dict[str, Any]:
        """The fields of the `ShardState` that this part keeps."""
        return {}

    def restore(self, state: ms.ShardState, now: float) -> None:
        """Continue from a state; the part is new."""

    def waiting(self) -> Sequence[Call[Any]]:
        """The calls without an answer, in order."""
        return ()

    def forget(self, gone: Sequence[Member], result: StepResult) -> None:
        """End what these members have here: they have left, were lost, or have joined anew."""

    def due(self, now: float) -> dict[str, Any]:
        """The fields of the `Tick` of this moment."""
        return {}

    def tick(self, tick: ms.Tick, result: StepResult) -> None:
        """Do what is due."""

    def status(self, asked: ms.Status, now: float) -> dict[str, Any]:
        """The fields of the `StatusReport` that this part knows. Changes nothing."""
        return {}


def names(members: Iterable[Member]) -> dict[str, None]:
    """The names of members, in order, each once."""
    return dict.fromkeys([member.name for member in members])
