"""What a data queue hands out: blocks of positions, and what comes back of them. Pure: no messages, no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """What a data queue hands out: the positions 0 to `size` of each epoch's order, in blocks of `block` positions.

    The order itself (a permutation by seed and epoch) is computed by the workers. Validated when built.

    Raises:
        ValueError: a size is not positive.
    """

    name: str
    size: int
    block: int
    epochs: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks every field."""
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
    """A block that its worker is through with, and the sum of the losses of its examples, if it saw any."""

    number: int
    cost_sum: float | None = None


@dataclass(frozen=True, slots=True)
class EpochReport:
    """An epoch that is complete: every example was seen. `cost` is the mean over them, None without losses."""

    queue: str
    epoch: int
    cost: float | None
    examples: int
