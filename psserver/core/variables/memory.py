"""The memory that a shard may take for its variables, and what its parts take of it."""

import math
from collections.abc import Callable


class Memory:
    """The `limit` in bytes, None: there is none; and the uses that count, each told by the part that has it."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._uses: list[tuple[Callable[[], int], bool]] = []

    def count(self, nbytes: Callable[[], int], *, passing: bool = False) -> None:
        """Count what a part takes, at every moment; `passing`: it will be free again by itself."""
        self._uses.append((nbytes, passing))

    @property
    def free(self) -> float:
        """Bytes that variables, slots, the copies and late changes of a cut, and minimizations may still take."""
        return math.inf if self.limit is None else self.limit - sum([nbytes() for nbytes, _ in self._uses])

    @property
    def passing(self) -> int:
        """Bytes that will be free again: of the copies for a checkpoint."""
        return sum([nbytes() for nbytes, passing in self._uses if passing])
