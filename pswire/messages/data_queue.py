"""Messages of the data queue, on shard 0: blocks of positions, and reports of complete epochs."""

from __future__ import annotations

from dataclasses import dataclass

from pswire.messages.membership import Sender


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A data queue: positions 0 to `size` of each epoch's order, handed out in blocks of `block` positions.

    The order itself (a permutation by seed and epoch) is computed by the workers. `ValueError` without a name, or for a
    number below 1.
    """

    name: str
    size: int
    block: int
    epochs: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.name or min(self.size, self.block, self.epochs) < 1:
            raise ValueError(f"a data queue needs a name and a positive size, block and number of epochs, got {self}")


@dataclass(frozen=True, slots=True)
class Block:
    """Positions `start` to `stop` of the order of `epoch` (from 1); `number` names the block within its queue."""

    number: int
    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A block that its worker has processed, and the sum of the losses of its examples, if computed."""

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
        reports_received: the number of reports received so far.
        give_back: request no block; the one held goes to other workers.
    """

    sender: Sender
    queue: QueueSpec
    finished: Finished | None = None
    reports_received: int = 0
    give_back: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """The next block. None: either all is `done`, or `waiting_for` describes who holds the rest; ask again.

    Attributes:
        reports: complete epochs in order, without those the worker has received.
        chief: as in `Joined`, at the moment of the answer. A dead chief's block is handed out again only when the chief
            is known to be lost, so a worker that gets a block's epoch report knows the new chief by then.
    """

    block: Block | None
    done: bool = False
    waiting_for: str = ""
    reports: tuple[EpochReport, ...] = ()
    chief: bool = False
