"""The space of a method of batch optimization: vectors stored elsewhere, and the loss at the variables' values."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pswire.specs.vectors import Operation

#: The last accepted point, and the gradient there.
POINT, POINT_GRADIENT = "point", "point-gradient"


class Space(Protocol):
    """The vectors of a model, in which no method ever sees an element."""

    def run(self, operations: Sequence[Operation]) -> list[float]:
        """Apply operations in order, each exactly once; the results of the operations that have one."""

    def evaluate(self) -> float:
        """The loss at `VARIABLES`, whose gradient becomes `GRADIENT`. May be infinite or not a number."""

    def accept(self, operations: Sequence[Operation]) -> list[float]:
        """Copy `VARIABLES` and `GRADIENT` to `POINT` and `POINT_GRADIENT`, and run operations; their results.

        The previous point is kept until `save`.
        """

    def save(self, data: Mapping[str, Any]) -> None:
        """Keep plain data with the accepted point, for a descent that continues from there."""
