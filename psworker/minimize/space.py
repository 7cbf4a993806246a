"""What a method of batch optimization works on: vectors that lie elsewhere, and the loss at the variables' values."""

from collections.abc import Sequence
from typing import Protocol

from pswire.specs.vectors import Operation


class Space(Protocol):
    """The vectors of a model, in which no method ever sees an element."""

    def run(self, operations: Sequence[Operation]) -> list[float]:
        """Apply operations in order; the results of those that have one. Each is applied exactly once."""

    def evaluate(self) -> float:
        """The loss at `VARIABLES`, whose gradient becomes `GRADIENT`. May be infinite or not a number."""
