"""Checkpoints: the state of one shard at a cut as a folder of files, which is complete or not there.

    manifest.json            the state as JSON, and size and CRC32C of all other files
    variables.safetensors    values by the names of variables
    slots.safetensors        slots of their optimizers, as `variable/slot`
    served.safetensors       with delay compensation: the weights last served to workers
    late.log                 changes that belong to the cut and came after the snapshot (`psserver.storage.records`)

A checkpoint is restored as it is if nothing was acknowledged after its snapshot, or if a journal has what came after
it; otherwise as a cut, with the late changes (`psserver.storage.recovery`).
"""

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psserver.core.state import VariableArrays
from psserver.core.variables.variable import stored_slot_specs
from psserver.storage import manifest, records
from psserver.storage.array_files import FileSum, NewFile, StoredFile, array_header, damaged, read_arrays
from psserver.storage.checkpoint_folders import available, remove, shard_folder
from psserver.storage.checkpoint_manifest import Manifest, read_manifest, write_manifest
from psserver.storage.files import new_folder
from pswire.errors import DamagedFile, Malformed
from pswire.messages import Message, ShardState, VariableState
from pswire.tensors.values import Array, TensorSpec

VARIABLES, SLOTS, SERVED, LATE = "variables.safetensors", "slots.safetensors", "served.safetensors", "late.log"

#: Before each record in `late.log`: its bytes. Both are padded to a multiple of `records.ALIGNMENT`.
_LENGTH = struct.Struct("<Q8x")


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A checkpoint that was read, all of it intact.

    Attributes:
        manifest: what it is.
        state: of the shard at the snapshot.
        arrays: of each variable, owned by the caller.
        late: changes that belong to the cut and came after the snapshot, in order.
    """

    manifest: Manifest
    state: ShardState
    arrays: dict[str, VariableArrays]
    late: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest checkpoint that could be read, if any, and why newer ones could not, newest first."""

    checkpoint: Checkpoint | None
    skipped: tuple[DamagedFile, ...] = ()


# --- writing ----------------------------------------------------------------------------------------------------------


def write(
    folder: Path,
    state: ShardState,
    arrays: Iterator[tuple[str, VariableArrays]],
    late: Callable[[], Sequence[Message]],
    *,
    final: bool = False,
    is_cut: bool | None = None,
    worker: Mapping[str, Any] | None = None,
) -> Path:
    """Write the checkpoint `state.cut` of a shard; returns its folder, which is durable then. For a thread of its own.

    A checkpoint of this number that is there belongs to a timeline that was given up, and is replaced.

    Args:
        folder: of all checkpoints; made if it is not there.
        state: of the shard at the snapshot.
        arrays: of the variables of the state, in its order; may block. Each may be freed when the next is asked for.
        late: called when all arrays are written; may block until the cut is complete. Returns the changes that belong
            to the cut and came after the snapshot.
        final: see `Manifest`.
        is_cut: see `Manifest`. Without it, a final checkpoint is a cut only if there is one shard, since the shards of
            a job stop one after the other.
        worker: see `Manifest`.

    Raises `OSError`, and whatever the arguments raise: then nothing is left.
    """
    path = shard_folder(folder, state.cut, state.shard, state.shards)
    if path.exists():
        remove(folder, state.cut, state.shard, state.shards)
    with new_folder(path) as temporary:
        files = _write_variables(temporary, state.variables, arrays)
        served = manifest.served_arrays(state)
        if served:
            files[SERVED] = _write_arrays(temporary / SERVED, served)
        if changes := late():
            files[LATE] = _write_late(temporary / LATE, changes)
        is_cut = not final or state.shards == 1 if is_cut is None else is_cut
        write_manifest(temporary, state, files, served, final=final, is_cut=is_cut, late=len(changes), worker=worker)
    return path


def _write_variables(
    folder: Path, variables: Sequence[VariableState], arrays: Iterator[tuple[str, VariableArrays]]
) -> dict[str, FileSum]:
    """Write values and slots, one variable after the other."""
    with NewFile(folder / VARIABLES) as values, NewFile(folder / SLOTS) as slots:
        values.write(array_header(value_entries(variables)))
        slots.write(array_header(slot_entries(variables)))
        for variable in variables:
            name, found = next(arrays)
            if name != variable.spec.name:
                raise ValueError(f"the arrays of variable {variable.spec.name!r} were expected, not those of {name!r}")
            values.write_array(found.value, variable.spec)
            for slot, spec in stored_slot_specs(variable).items():
                slots.write_array(found.slots[slot], spec)
            del found
        return {VARIABLES: values.sum, SLOTS: slots.sum}


def _write_arrays(path: Path, arrays: dict[str, Array]) -> FileSum:
    entries = {name: TensorSpec.of("served", array) for name, array in arrays.items()}
    with NewFile(path) as file:
        file.write(array_header(entries.items()))
        for name, spec in entries.items():
            file.write_array(arrays[name], spec)
        return file.sum


def _write_late(path: Path, changes: Sequence[Message]) -> FileSum:
    with NewFile(path) as file:
        for change in changes:
            parts = records.encode(change)
            length = sum([len(part) for part in parts])
            for part in (_LENGTH.pack(length), *parts, bytes(-length % records.ALIGNMENT)):
                file.write(part)
        return file.sum


def value_entries(variables: Sequence[VariableState]) -> list[tuple[str, TensorSpec]]:
    """The arrays in the file of values."""
    return [(variable.spec.name, variable.spec) for variable in variables]


def slot_entries(variables: Sequence[VariableState]) -> list[tuple[str, TensorSpec]]:
    """The arrays in the file of slots."""
    return [(f"{one.spec.name}/{slot}", spec) for one in variables for slot, spec in stored_slot_specs(one).items()]


# --- reading ----------------------------------------------------------------------------------------------------------


def read(folder: Path, number: int, shard: int, shards: int) -> Checkpoint:
    """Read a checkpoint of one shard.

    Raises `DamagedFile`, which names the file, unless every file is the one that was written, and `StorageError` if one
    may not be read, or is of a later version of its format.
    """
    found = read_manifest(folder, number, shard, shards)
    files, path = found.files, found.path
    served = read_arrays(path / SERVED, files[SERVED], list(found.served.items())) if SERVED in files else {}
    state = found.state_with(served)
    values = read_arrays(path / VARIABLES, files[VARIABLES], value_entries(state.variables))
    slots = read_arrays(path / SLOTS, files[SLOTS], slot_entries(state.variables))
    arrays = {}
    for variable in state.variables:
        name = variable.spec.name
        mine = {slot: slots[f"{name}/{slot}"] for slot in stored_slot_specs(variable)}
        arrays[name] = VariableArrays(values[name], mine)
    late = _read_late(path / LATE, files[LATE]) if LATE in files else []
    return Checkpoint(found, state, arrays, tuple(late))


def _read_late(path: Path, expected: FileSum) -> Iterator[Message]:
    with StoredFile(path, expected) as file:
        data = memoryview(file.read(expected.nbytes))
        file.check_end()
    start = 0
    try:
        while start < len(data):
            begin = start + _LENGTH.size
            end = begin + _LENGTH.unpack_from(data, start)[0]
            yield records.decode(data[begin:end])
            start = end + -end % records.ALIGNMENT
    except (Malformed, struct.error) as error:
        raise damaged(path, str(error)) from error


def latest(folder: Path, shard: int, shards: int, without: Collection[int] = ()) -> Latest:
    """The newest checkpoint of a shard that is not damaged, other than some.

    Raises `StorageError` for one that may not be read.
    """
    skipped: list[DamagedFile] = []
    for number in reversed(available(folder, shard, shards)):
        if number in without:
            continue
        try:
            return Latest(read(folder, number, shard, shards), tuple(skipped))
        except DamagedFile as error:
            skipped.append(error)
    return Latest(None, tuple(skipped))
