"""Which variable lives on which shard. Pure: the same variables and number of shards give the same places everywhere.

The largest variable goes first, to the shard with the least; ties go by name and to the lowest shard. Those
that come later are placed beside those that are there, which never move.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pswire.errors import UnknownVariable
from pswire.values import TensorSpec

T = TypeVar("T")


class Placement:
    """The shard of each variable."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self._shard: dict[str, int] = {}
        self._bytes = [0] * shards

    def add(self, specs: Iterable[TensorSpec]) -> None:
        """Places the variables that have no place yet."""
        new = [spec for spec in specs if spec.name not in self._shard]
        for spec in sorted(new, key=lambda spec: (-spec.nbytes, spec.name)):
            shard = self._bytes.index(min(self._bytes))
            self._shard[spec.name] = shard
            self._bytes[shard] += spec.nbytes

    def __getitem__(self, name: str) -> int:
        shard = self._shard.get(name)
        if shard is None:
            raise UnknownVariable(f"variable {name!r} has not been registered by this worker: register it first")
        return shard

    def split(self, items: Iterable[tuple[str, T]]) -> list[list[T]]:
        """The items of each shard, by the variables' names they come with, in their order."""
        parts: list[list[T]] = [[] for _ in range(self.shards)]
        for name, item in items:
            parts[self[name]].append(item)
        return parts
