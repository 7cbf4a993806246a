"""The data queue: blocks of examples, how far they are done, and the reports of epochs."""

from __future__ import annotations

from dataclasses import dataclass

from pswire.messages.membership import Sender


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A data queue: positions 0 to `size` of each epoch's order, handed out in blocks of `block` positions.

    Positions are examples; those of a queue without a `size` are batches, which each worker reads from its own source.

    Attributes:
        size: positions of an epoch; 0: unknown, so that the first epoch does not end. Then `epochs` is 0 too.
        epochs: passes over all positions; 0: without end.
        seed: the order of an epoch is a permutation by seed and epoch, which the workers compute.
        limit: the queue ends after so many positions, over all epochs, if that is earlier; 0: none.
        in_order: the order is 0 to `size` itself.
    """

    name: str
    size: int
    block: int
    epochs: int
    seed: int = 0
    limit: int = 0
    in_order: bool = False

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


@dataclass(frozen=True, slots=True)
class Block:
    """Positions `start` to `stop` of the order of `epoch` (from 1); `number` names the block within its queue.

    Of a block that is handed out again only the rest, which is not done (`Progress`): it has the same number.
    """

    number: int
    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A block that its worker has processed to its stop, and the sum of the losses of its examples, if computed."""

    number: int
    cost_sum: float | None = None


@dataclass(frozen=True, slots=True)
class EpochReport:
    """A complete epoch: every example was processed. `cost` is the mean over them, None without losses."""

    queue: str
    epoch: int
    cost: float | None
    examples: int


@dataclass(frozen=True, slots=True)
class Take:
    """Requests the next block. A worker holds one block of a queue at a time; a repeated Take gets the same block.

    Attributes:
        finished: the block to return as done.
        reports_received: the epoch of the last report that the worker has received; 0: none.
        give_back: request no block; the one held goes to other workers.
        timeline: that the worker knows, as in `Join`; 0: any.
    """

    sender: Sender
    queue: QueueSpec
    finished: Finished | None = None
    reports_received: int = 0
    give_back: bool = False
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """The next block. None: either all is `done`, or `waiting_for` describes who holds the rest; ask again.

    Attributes:
        reports: complete epochs in order, without those the worker has received; of more than 1,000 the newest.
        chief: as in `Joined`. A dead chief's block is handed out again only when the chief is known to be lost, so a
            worker that gets a block's epoch report knows the new chief by then.
        cut, stopped: as in `Joined`.
    """

    block: Block | None
    done: bool = False
    waiting_for: str = ""
    reports: tuple[EpochReport, ...] = ()
    chief: bool = False
    cut: int = 0
    stopped: str = ""
