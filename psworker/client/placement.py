"""Which shard has which rows of a variable. Pure: the same variables and number of shards have the same places always.

The largest variable goes first, to the shard with the least; ties go by name and to the lowest shard. One of more than
`SPLIT_BYTES` is split by rows over all shards. Those that come later are placed beside those that are there, which
never move. How arrays are cut is in `pieces`. May import values and errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pswire.errors import AlreadyRegistered, ShapeMismatch, UnknownVariable
from pswire.tensors.values import Array, IndexedSlices, Part, TensorSpec

#: Bytes above which a variable is split, if it has a row for each shard: some milliseconds of a fast network.
SPLIT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A variable's value or gradient, put together from all shards that have some of it.

    Attributes:
        name: the variable's.
        versions: one for each part, in the order of shards; a variable that is not split has one.
        array: of the variable's shape; or some of its rows.
        served_at: the changes that shard 0 had decided (`Frontier.decided`) and this has; of a gradient, the weights
            that it was computed with. Known where shard 0 orders the changes of all shards, otherwise None.
        rejoins: of a value, how often the worker had joined a shard again when it asked for it: versions count the
            changes of one life of a server (`calls`).
    """

    name: str
    versions: tuple[int, ...]
    array: Array | IndexedSlices
    served_at: int | None = None
    rejoins: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What one shard has of a variable: `spec` describes it, `part` says which rows they are (None: all there is)."""

    shard: int
    spec: TensorSpec
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A variable and its pieces, in the order of their shards, which is also that of their rows."""

    spec: TensorSpec
    pieces: tuple[Piece, ...]

    def check(self, array: Array | IndexedSlices, what: str) -> None:
        """Raises `ShapeMismatch` unless `array` has the variable's shape and dtype."""
        if not self.spec.matches(array):
            raise ShapeMismatch(
                f"{what} for {self.spec.name!r} is {array.dtype.name}{list(array.shape)}, the variable is "
                f"{self.spec.dtype}{list(self.spec.shape)}: nothing was sent"
            )


class Placement:
    """The places of variables; never changed once it is made.

    placement = Placement(2).extended([TensorSpec("W", (784, 10)), TensorSpec("b", (10,))])
    placement["W"].pieces                      # one, on shard 0
    placement.by_shard(["b", "W"])             # [["W"], ["b"]]
    """

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self._placed: dict[str, Placed] = {}
        self._bytes = [0] * shards

    def extended(self, specs: Iterable[TensorSpec]) -> Placement:
        """This placement, and places for those variables that have none yet.

        Raises:
            AlreadyRegistered: one of them has a place, with another shape or dtype.
        """
        new = {}
        for spec in specs:
            known = self._placed.get(spec.name)
            if known is None:
                new[spec.name] = spec
            elif known.spec != spec:
                raise AlreadyRegistered(
                    f"variable {known.spec} is registered by this worker, and now declared as {spec}"
                )
        if not new:
            return self
        placement = Placement(self.shards)
        placement._placed, placement._bytes = self._placed.copy(), self._bytes.copy()
        for spec in sorted(new.values(), key=lambda spec: (-spec.nbytes, spec.name)):
            placement._place(spec)
        return placement

    def __getitem__(self, name: str) -> Placed:
        placed = self._placed.get(name)
        if placed is None:
            raise UnknownVariable(f"variable {name!r} has not been registered by this worker: register it first")
        return placed

    def by_shard(self, names: Iterable[str]) -> list[list[str]]:
        """For each shard the names of the variables that it has something of, each once, in their order."""
        parts: list[list[str]] = [[] for _ in range(self.shards)]
        for name in dict.fromkeys(names):
            for piece in self[name].pieces:
                parts[piece.shard].append(name)
        return parts

    def _place(self, spec: TensorSpec) -> None:
        split = self.shards > 1 and spec.nbytes > SPLIT_BYTES and spec.shape[0] >= self.shards
        emptiest = sorted(range(self.shards), key=self._bytes.__getitem__)
        pieces = _split(spec, emptiest) if split else (Piece(emptiest[0], spec),)
        for piece in pieces:
            self._bytes[piece.shard] += piece.spec.nbytes
        self._placed[spec.name] = Placed(spec, pieces)


def _split(spec: TensorSpec, emptiest: Sequence[int]) -> tuple[Piece, ...]:
    """Nearly equal parts, one a shard; where the rows do not come out even, the emptiest shards get one more."""
    rows, shards = spec.shape[0], len(emptiest)
    fewest, longer = divmod(rows, shards)
    counts = [fewest] * shards
    for shard in emptiest[:longer]:
        counts[shard] += 1
    firsts = [sum(counts[:shard]) for shard in range(shards)]
    return tuple(
        Piece(shard, TensorSpec(spec.name, (counts[shard], *spec.shape[1:]), spec.dtype), Part(firsts[shard], rows))
        for shard in range(shards)
    )
