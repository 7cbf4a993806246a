"""The pull of variables from all shards that hold partitions of them: what each is asked for, and the answers joined.

Pure: sends nothing. Joined arrays are new, each part copied or unpacked once; a variable with one partition is not
copied. May import partitions, placement, messages and compression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np

from pswire.errors import Malformed
from pswire.messages import Pulled, Pushed, Registered, Value
from pswire.tensors.compression import BLOCK, Packed
from pswire.tensors.values import DTYPES, Array, IndexedSlices
from psworker.client import partitions
from psworker.client.placement import PlacedVariable, Placement
from psworker.versions import ReadVersion, VersionedArray

_version = attrgetter("version")


class ShardedPull:
    """Variables whose values are pulled.

    Values that the worker got before it joined a shard again are not named: a server that was started anew may have
    reached the same version by other updates.

    Args:
        placement: of the variables.
        names: the variables, in the order of the results; `UnknownVariable` if one is not placed.
        known_values: values that the worker has.
        rejoins: how often the worker has joined a shard again until now.

    Attributes:
        names: by shard, the variables that it holds a partition of, each once, in their order.
        known_versions: by shard, the versions that the worker has of these, -1 for none; empty if it has none at all.
        rejoins: as given.
    """

    def __init__(
        self,
        placement: Placement,
        names: Iterable[str],
        known_values: Iterable[VersionedArray] = (),
        rejoins: int = 0,
    ) -> None:
        self.rejoins = rejoins
        self._variables: dict[str, PlacedVariable] = {}
        self._known: dict[str, VersionedArray] = {}
        for value in known_values:
            if value.read.rejoins == rejoins:
                self._known[value.name] = value
        self.names: dict[int, list[str]] = {}
        self.known_versions: dict[int, list[int]] = {}
        for name in dict.fromkeys(names):
            variable = self._variables[name] = placement[name]
            known = self._known.get(name)
            for index, partition in enumerate(variable.partitions):
                self.names.setdefault(partition.shard, []).append(name)
                if self._known:
                    version = -1 if known is None else known.read.versions[index]
                    self.known_versions.setdefault(partition.shard, []).append(version)

    def joined(
        self, answers: Iterable[Registered | Pulled | Pushed], served_at: int | None = None
    ) -> list[VersionedArray]:
        """The values, joined; without the tables, which a `Registered` lacks. Unchanged values keep the known array."""
        found: dict[str, list[Value]] = {}
        for answer in answers:
            for value in answer.values:
                found.setdefault(value.name, []).append(value)
        values = []
        for name, variable in self._variables.items():
            if name in found:
                array = join(variable, found[name], self._known.get(name))
                read = ReadVersion(tuple(map(_version, found[name])), served_at, self.rejoins)
                values.append(VersionedArray(name, read, array))
        return values


def join(variable: PlacedVariable, values: Sequence[Value], known: VersionedArray | None = None) -> Array:
    """The values of all partitions, in their order, as one array; read-only.

    Args:
        variable: the variable.
        values: one for each partition; without an array, the partition is as in `known`.
        known: the value whose versions the shards were given; never written. Its own array if nothing has changed.

    Raises:
        Malformed: a value is not what its shard was asked for.
    """
    spec, changed = variable.spec, False
    if len(values) != len(variable.partitions):
        raise Malformed(f"got {len(values)} values of {spec.name!r}, which has {len(variable.partitions)} partitions")
    for index, value in enumerate(values):
        partition, array = variable.partitions[index], value.array
        if array is None:
            named = -1 if known is None else known.read.versions[index]
            if named < 0 or value.version != named:
                raise Malformed(
                    f"shard {partition.shard} answers that {value.name!r} is still at version {value.version}: this "
                    f"worker named {'none' if named < 0 else f'version {named}'}"
                )
        else:
            changed, expected = True, partition.spec
            if not expected.matches(array):
                got = f"{array.dtype.name}{list(array.shape)}"
                raise Malformed(f"shard {partition.shard} has sent {got} for variable {expected}")
    old = None if known is None else known.array
    assert not isinstance(old, IndexedSlices), "a value has all rows"
    if old is not None and not changed:
        return old
    if len(values) == 1:
        return unpacked(values[0])
    joined = np.empty(spec.shape, DTYPES[spec.dtype])
    targets = partitions.split_array(variable, joined)
    sources = targets if old is None else partitions.split_array(variable, old)
    for value, target, source in zip(values, targets, sources, strict=True):
        _copy_into(target, source if value.array is None else value.array)
    joined.flags.writeable = False
    return joined


def concatenated(values: Sequence[Value]) -> Array:
    """The arrays of all partitions one after the other, of a slot for instance, which may have a dtype of its own."""
    arrays = [unpacked(value) for value in values]
    if len(arrays) == 1:
        return arrays[0]
    array = np.concatenate(arrays)
    array.flags.writeable = False
    return array


def unpacked(value: Value) -> Array:
    """The array of a value that has one; read-only."""
    assert value.array is not None, "it has changed, or was chosen"
    if not isinstance(value.array, Packed):
        return value.array
    array = value.array.unpacked()
    array.flags.writeable = False
    return array


def _copy_into(target: Array, part: Array | Packed) -> None:
    """Writes a part into its C-contiguous rows; packed elements block by block, which stays in the cache."""
    if not isinstance(part, Packed):
        target[...] = part
        return
    flat = target.reshape(-1)
    for start in range(0, part.size, BLOCK):
        stop = min(start + BLOCK, part.size)
        flat[start:stop] = part.elements(start, stop)
