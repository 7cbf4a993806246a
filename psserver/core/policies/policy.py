"""The interface of consistency policies: their view of the shard, and their decisions. Makes no decisions itself."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from psserver.core.members.membership import Membership
from pswire.messages import ChangeId, UpdateGroup


@dataclass(frozen=True, slots=True)
class PushView:
    """A held push; `staleness`: changes that its weights have missed by now; `group`: shard 0's decision about it.

    `norm`: of its gradients, if there is a limit.
    """

    ticket: int
    worker: str
    staleness: int = 0
    group: UpdateGroup | None = None
    norm: float = 0.0


@dataclass(frozen=True, slots=True)
class ShardView:
    """The read-only view that policies have of the shard. Every worker with a held push is in training.

    `settled` tells whether a message will not be applied here any more: it was, its worker has abandoned it, or the
    worker's lease has expired.
    """

    global_step: int
    members: Membership
    settled: Callable[[ChangeId], bool] = lambda change: True


@dataclass(frozen=True, slots=True)
class Apply:
    """Make one update of the mean of these pushes, with the learning rate times `scale`, 1 at most.

    If its result is not finite, the pushes are refused, and the policy is asked again before its next decision.
    """

    tickets: tuple[int, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Drop:
    """Do not apply this push; its worker gets the reason."""

    ticket: int
    reason: str


Decision: TypeAlias = Apply | Drop


class Policy(Protocol):
    """A consistency policy: decides when pushes are applied. Pure: keeps no state between calls and has no clock.

    A push that was applied or dropped is answered at the end of the step, as are pulls: no policy holds them.
    """

    def decide(self, pushes: Sequence[PushView], shard: ShardView) -> list[Decision]:
        """Decide about held pushes, one at least, in order of arrival; none: all of them remain held.

        It is asked again after its decisions have been carried out, until it makes none, so it may postpone some.
        """
        ...

    def awaited(self, pushes: Sequence[PushView], shard: ShardView) -> dict[str, int]:
        """The workers that must push before some of `pushes`, which `decide` has left, are released.

        Each has the number of the step that it holds up.
        """
        ...

    def explain(self, pushes: Sequence[PushView], shard: ShardView) -> Callable[[PushView], str]:
        """A function that tells in one sentence for which workers and why one of `pushes` is held.

        `decide` has left these, one at least. The function is called for each of them, so it has to be cheap.
        """
        ...


def join_names(names: Iterable[str], most: int = 4) -> str:
    """Joins names for a sentence: at most `most`, and the number of the others."""
    every = list(names)
    shown = every[:most] if len(every) > most + 1 else every
    if len(shown) < len(every):
        shown.append(f"{len(every) - len(shown)} others")
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]])) or "none"
