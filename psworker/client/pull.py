"""Values that a worker asks for, over all shards: which versions it has of them, and what comes back, put together.

Pure: asks nobody. May import pieces, placement and messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pswire.messages import Pulled, Pushed, Registered, Value
from psworker.client import partitions
from psworker.client.placement import Placement, Whole


class ShardedPull:
    """Variables whose values are asked for.

    A version counts the changes of a variable in one life of a server. What the worker had got before it joined a shard
    again is therefore not named: a server that was started anew may have come to the same version by other changes.

    Args:
        placement: where they are.
        names: the variables, in the order in which they are given back; `UnknownVariable` if one has no place.
        have: the values that the worker has of some, as they were given to it.
        rejoins: how often the worker has joined a shard again until now.

    Attributes:
        names: for each shard the variables that it has something of, each once, in their order.
        have: for each shard the versions that the worker has of them, -1 for none; () where it has none at all.
        rejoins: what was given.
    """

    def __init__(
        self, placement: Placement, names: Sequence[str], known_versions: Iterable[Whole] = (), rejoins: int = 0
    ) -> None:
        self.rejoins = rejoins
        self._all = names
        self._variables = {name: placement[name] for name in names}
        self._old = {whole.name: whole for whole in known_versions if whole.rejoins == rejoins}
        named: list[list[str]] = [[] for _ in range(placement.shards)]
        versions: list[list[int]] = [[] for _ in range(placement.shards)]
        for name, variable in self._variables.items():
            old = self._old.get(name)
            for index, piece in enumerate(variable.pieces):
                named[piece.shard].append(name)
                versions[piece.shard].append(-1 if old is None else old.versions[index])
        self.names = [tuple(part) for part in named]
        self.known_versions = [tuple(part) if self._old else () for part in versions]

    def wholes(self, answers: Iterable[Registered | Pulled | Pushed], served_at: int | None) -> list[Whole]:
        """The values, put together, with `Whole.served_at`; without the tables that a `Registered` lacks.

        The array of one that has not changed is the one that the worker has.
        """
        found: dict[str, list[Value]] = {}
        for answer in answers:
            for value in answer.values:
                found.setdefault(value.name, []).append(value)
        return [self._whole(name, found[name], served_at) for name in self._all if name in found]

    def _whole(self, name: str, values: Sequence[Value], served_at: int | None) -> Whole:
        array = partitions.join(self._variables[name], values, self._old.get(name))
        return Whole(name, tuple([value.version for value in values]), array, served_at, self.rejoins)
