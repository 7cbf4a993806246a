"""Placement: which shard holds which rows of which variable. Pure: the same for workers and for a restore.

The largest variable of a group is placed first, on the shard with the fewest bytes; ties are resolved by name and by
the lowest shard. A variable of more than `SPLIT_BYTES` is partitioned by rows over all shards. A group is what one
`Register` brings that is new: it is placed around the groups before it, which never move. So a placement depends on the
groups and their order, but not on the order within a group. Imports values only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pswire.tensors.values import Part, TensorSpec

#: Bytes above which a variable is partitioned, if it has a row for each shard: some milliseconds of a fast network.
SPLIT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Partition:
    """The part of a variable that one shard holds: its spec, and which rows of the whole it has (None: all)."""

    shard: int
    spec: TensorSpec
    part: Part | None = None


def place(
    group: Iterable[TensorSpec], shards: int, placed: Iterable[Partition] = ()
) -> dict[str, tuple[Partition, ...]]:
    """The partitions of each variable of a group, given the `placed` ones; in the order of shards and rows."""
    held = [0] * shards
    for partition in placed:
        held[partition.shard] += partition.spec.nbytes
    found = {}
    for spec in sorted(group, key=lambda spec: (-spec.nbytes, spec.name)):
        split = shards > 1 and spec.nbytes > SPLIT_BYTES and spec.shape[0] >= shards
        emptiest = sorted(range(shards), key=held.__getitem__)
        found[spec.name] = _split(spec, emptiest) if split else (Partition(emptiest[0], spec),)
        for partition in found[spec.name]:
            held[partition.shard] += partition.spec.nbytes
    return found


def place_again(groups: Iterable[Iterable[TensorSpec]], shards: int) -> dict[str, tuple[Partition, ...]]:
    """The partitions of all variables on another number of shards, as workers place them.

    `groups` are the specs of whole variables in the order in which they were registered, as `ShardState.groups` of
    shard 0 has their names.
    """
    found: dict[str, tuple[Partition, ...]] = {}
    for group in groups:
        found |= place(group, shards, [partition for partitions in found.values() for partition in partitions])
    return found


def _split(spec: TensorSpec, emptiest: Sequence[int]) -> tuple[Partition, ...]:
    """Nearly equal partitions, one per shard; the shards with the fewest bytes get one of the remaining rows each."""
    rows, shards = spec.shape[0], len(emptiest)
    fewest, remaining = divmod(rows, shards)
    counts = [fewest] * shards
    for shard in emptiest[:remaining]:
        counts[shard] += 1
    return tuple(
        Partition(shard, TensorSpec(spec.name, (count, *spec.shape[1:]), spec.dtype), Part(sum(counts[:shard]), rows))
        for shard, count in enumerate(counts)
    )
