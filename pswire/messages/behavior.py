"""Methods of messages: base classes of the generated message classes."""

from __future__ import annotations

from typing import Any, NamedTuple

from pswire.limits import MAX_ENTRIES


class Call(NamedTuple):
    """A method of the service, with what servers and clients need to know of it.

    Attributes:
        role: the least role whose token may call it: an admin may call all, an observer the fewest.
        change: it changes the state of a shard, so that it is in the journal.
        of_timeline: it is refused if its `timeline` is another one than the shard's.
        wait: what a call without an answer waits for.
    """

    name: str
    request: type[Any]
    answer: type[Any]
    role: str
    change: bool
    of_timeline: bool
    wait: str


class JobText:
    """A job as people read it."""

    __slots__ = ()
    number: int
    name: str
    session: int

    def __str__(self) -> str:
        of_program = f", session {self.session}" if self.session > 1 else ""
        return f"job {self.number} ({self.name}{of_program})" if self.name else f"job {self.number}"


class QueueRules:
    """Which data queues there can be."""

    __slots__ = ()
    name: str
    size: int
    block: int
    epochs: int
    limit: int

    def __post_init__(self) -> None:
        if not self.name or self.block < 1 or min(self.size, self.epochs, self.limit) < 0:
            raise ValueError(f"a data queue needs a name, a positive block and no negative number, got {self}")
        if not self.size and self.epochs:
            raise ValueError(f"a data queue without a size has no epochs, got {self}")

    @property
    def total(self) -> int | None:
        """Positions of all epochs up to the end of the queue; None: it has no end."""
        ends = [end for end in (self.size * self.epochs, self.limit) if end]
        return min(ends, default=None)


class EvaluationRules:
    """Which evaluations there can be."""

    __slots__ = ()
    number: int
    examples: int
    portion: int

    def __post_init__(self) -> None:
        if min(self.number, self.examples, self.portion) < 1:
            raise ValueError(f"an evaluation has positive numbers only, got {self}")
        if self.portions > MAX_ENTRIES:
            raise ValueError(
                f"an evaluation of {self.examples:,} examples in portions of {self.portion:,} has {self.portions:,} "
                f"portions, and may have {MAX_ENTRIES:,}: make them larger"
            )

    @property
    def portions(self) -> int:
        """The number of portions."""
        return -(-self.examples // self.portion)
