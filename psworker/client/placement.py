"""Placement: which shard holds which rows of a variable. Pure: a function of the variables and the number of shards.

The largest variable is placed first, on the shard with the fewest bytes; ties are resolved by name and by the lowest
shard. A variable of more than `SPLIT_BYTES` is partitioned by rows over all shards. Variables registered later are
placed around the existing ones, which never move. How arrays are split is in `partitions`. May import values and
errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from pswire.errors import AlreadyRegistered, ShapeMismatch, UnknownVariable
from pswire.tensors.values import Array, IndexedSlices, Part, TensorSpec

#: Bytes above which a variable is partitioned, if it has a row for each shard: some milliseconds of a fast network.
SPLIT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Partition:
    """The part of a variable that one shard holds: its spec, and which rows of the whole it has (None: all)."""

    shard: int
    spec: TensorSpec
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class PlacedVariable:
    """A variable and its partitions, in the order of their shards and of their rows."""

    spec: TensorSpec
    partitions: tuple[Partition, ...]

    def check(self, array: Array | IndexedSlices, kind: str) -> None:
        """Raises `ShapeMismatch` unless `array`, a `kind` of value, has the variable's shape and dtype."""
        spec = self.spec
        if not spec.matches(array):
            raise ShapeMismatch(
                f"{kind} for {spec.name!r} is {array.dtype.name}{list(array.shape)}, the variable is "
                f"{spec.dtype}{list(spec.shape)}: nothing was sent"
            )


class Placement(dict[str, PlacedVariable]):
    """The placed variables by name; never changed once it is made. An unknown name raises `UnknownVariable`.

    placement = Placement(2).extended([TensorSpec("W", (784, 10)), TensorSpec("b", (10,))])
    placement["W"].partitions                  # one, on shard 0
    placement.by_shard(["b", "W"])             # [["W"], ["b"]]
    """

    def __init__(self, shards: int) -> None:
        super().__init__()
        self.shards = shards
        self._bytes = [0] * shards

    def __missing__(self, name: str) -> NoReturn:
        raise UnknownVariable(f"variable {name!r} has not been registered by this worker: register it first")

    def extended(self, specs: Iterable[TensorSpec]) -> Placement:
        """A copy with new variables; `AlreadyRegistered` if one is placed already, with another shape or dtype."""
        new = {}
        for spec in specs:
            known = self.get(spec.name)
            if known is None:
                new[spec.name] = spec
            elif known.spec != spec:
                raise AlreadyRegistered(
                    f"variable {known.spec} is already registered by this worker, but is now declared as {spec}"
                )
        placement = Placement(self.shards)
        placement.update(self)
        placement._bytes = self._bytes.copy()
        for spec in sorted(new.values(), key=lambda spec: (-spec.nbytes, spec.name)):
            placement._place(spec)
        return placement

    def by_shard(self, names: Iterable[str]) -> list[list[str]]:
        """For each shard the names of the variables that it holds a partition of, each once, in their order."""
        parts: list[list[str]] = [[] for _ in range(self.shards)]
        for name in dict.fromkeys(names):
            for partition in self[name].partitions:
                parts[partition.shard].append(name)
        return parts

    def _place(self, spec: TensorSpec) -> None:
        split = self.shards > 1 and spec.nbytes > SPLIT_BYTES and spec.shape[0] >= self.shards
        emptiest = sorted(range(self.shards), key=self._bytes.__getitem__)
        partitions = _split(spec, emptiest) if split else (Partition(emptiest[0], spec),)
        for partition in partitions:
            self._bytes[partition.shard] += partition.spec.nbytes
        self[spec.name] = PlacedVariable(spec, partitions)


def _split(spec: TensorSpec, emptiest: Sequence[int]) -> tuple[Partition, ...]:
    """Nearly equal partitions, one per shard; the shards with the fewest bytes get one of the remaining rows each."""
    rows, shards = spec.shape[0], len(emptiest)
    fewest, remaining = divmod(rows, shards)
    counts = [fewest] * shards
    for shard in emptiest[:remaining]:
        counts[shard] += 1
    firsts = [sum(counts[:shard]) for shard in range(shards)]
    return tuple(
        Partition(shard, TensorSpec(spec.name, (counts[shard], *spec.shape[1:]), spec.dtype), Part(firsts[shard], rows))
        for shard in range(shards)
    )
