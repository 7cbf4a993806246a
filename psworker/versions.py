"""Versions of weights: which updates a value includes, from its pull to the push of its gradient. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from pswire.tensors.values import Array, IndexedSlices


class ReadVersion(NamedTuple):
    """The version of a variable that a worker has read.

    `versions` counts the updates of each partition, in the order of shards; () until a server has sent a value.
    `served_at` counts the changes that shard 0 had decided then (`Frontier.decided`); None where it does not order the
    changes of all shards. `rejoins` is how often the worker had joined a shard again when it asked for the value:
    versions count updates since the start of a server, so a pull names only values read since the last rejoin.
    """

    versions: tuple[int, ...] = ()
    served_at: int | None = None
    rejoins: int = 0


@dataclass(slots=True, eq=False)
class VersionedArray:
    """A variable's value, or a gradient, over all partitions, and the version of the weights.

    `read` is the version of a value; of a gradient, that of the weights that it was computed with. `array` has the
    variable's shape, or is some of its rows.
    """

    name: str
    read: ReadVersion
    array: Array | IndexedSlices
