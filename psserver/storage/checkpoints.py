"""Checkpoints: the state of one shard at a cut as a folder of files, which is complete or not there.

    manifest.json            the state as JSON, and size and CRC32C of all other files
    variables.safetensors    values by the names of variables
    slots.safetensors        slots of their optimizers, as `variable/slot`
    served.safetensors       with delay compensation: the weights last served to workers
    late.log                 changes that belong to the cut and came after the snapshot (`psserver.storage.records`)

The state is the JSON of the protobuf `ShardState` (`protos/pswire/v1/state.proto`), without arrays. A checkpoint is
restored as it is if nothing was acknowledged after its snapshot, or if a journal has what came after it; otherwise as a
cut, with the late changes (`psserver.storage.find_start`).
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from psserver.core.variable_arrays import VariableArrays
from psserver.core.variables.variable import stored_slot_specs
from psserver.storage import records
from psserver.storage.arrays import FileSum, NewFile, StoredFile, array_header, damaged, read_arrays, unreadable
from psserver.storage.files import checked_json, new_folder, parse_checked_json
from psserver.storage.folders import available, remove, shard_folder
from pswire.codec.generated import get_shard_state, put_shard_state
from pswire.errors import DamagedFile, Malformed, StorageError
from pswire.messages import Message, ServedState, ShardState, VariableState
from pswire.tensors.compression import Packed
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.tensors.values import Array, TensorSpec
from pswire.v1 import state_pb2 as spb

#: The version of the format of a checkpoint.
FORMAT = 1

MANIFEST = "manifest.json"
VARIABLES, SLOTS, SERVED, LATE = "variables.safetensors", "slots.safetensors", "served.safetensors", "late.log"

#: Before each record in `late.log`: its bytes. Both are padded to a multiple of `records.ALIGNMENT`.
_LENGTH = struct.Struct("<Q8x")


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint, without its arrays.

    Attributes:
        path: its folder.
        number, shard, shards: of the cut, and of the shard.
        final: nothing was acknowledged after its snapshot, until a shard was started from it.
        is_cut: it has one moment of all shards, so that a job can go back to it.
        written: the time (ISO 8601, UTC).
        version: of the package that wrote it.
        late: the number of late changes.
        files: size and CRC32C by name.
        data: the state as JSON.
        served: dtype and shape of the arrays of served weights by name.
        worker: of an embedded shard, the part of the worker beside it (`psworker.transport.WorkerPart`).
    """

    path: Path
    number: int
    shard: int
    shards: int
    final: bool
    is_cut: bool
    written: str
    version: str
    late: int
    files: dict[str, FileSum]
    data: dict[str, Any]
    served: dict[str, TensorSpec]
    worker: dict[str, Any] | None = None

    @cached_property
    def state(self) -> ShardState:
        """The state, without served weights. Raises `DamagedFile`."""
        return self.state_with(None)

    def state_with(self, served: dict[str, Array] | None) -> ShardState:
        """The state, with the arrays of served weights; None: without. Raises `DamagedFile`."""
        data = self.data if served is not None else self.data | {"served": []}
        try:
            return state_from_json(data, served or {})
        except Malformed as error:
            raise damaged(self.path / MANIFEST, str(error)) from error

    @property
    def timeline(self) -> int:
        """As in `ShardState`."""
        return int(self.data.get("timeline", 0))

    @property
    def nbytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum([one.nbytes for one in self.files.values()])


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
        served = served_arrays(state)
        if served:
            files[SERVED] = _write_arrays(temporary / SERVED, served)
        if changes := late():
            files[LATE] = _write_late(temporary / LATE, changes)
        is_cut = not final or state.shards == 1 if is_cut is None else is_cut
        _write_manifest(temporary, state, files, served, final=final, is_cut=is_cut, late=len(changes), worker=worker)
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


def _write_manifest(
    folder: Path,
    state: ShardState,
    files: Mapping[str, FileSum],
    served: Mapping[str, Array],
    *,
    final: bool,
    is_cut: bool,
    late: int,
    worker: Mapping[str, Any] | None = None,
) -> None:
    """Write the manifest of a checkpoint, when its other files are complete. Raises `OSError`."""
    data = {
        "format": FORMAT,
        "final": final,
        "is_cut": is_cut,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "paramserver": version("paramserver"),
        "late": late,
        "files": {name: {"bytes": one.nbytes, "crc32c": f"{one.crc32c:08x}"} for name, one in files.items()},
        "served": {name: {"dtype": one.dtype.name, "shape": list(one.shape)} for name, one in served.items()},
        "state": state_to_json(state),
    } | ({} if worker is None else {"worker": worker})
    with NewFile(folder / MANIFEST) as file:
        file.write(checked_json(data))


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


def read_manifest(folder: Path, number: int, shard: int, shards: int) -> Manifest:
    """What a checkpoint is; its other files are not looked at.

    Raises `DamagedFile`, which names the manifest, unless it is intact and belongs there, and `StorageError` if it may
    not be read, or is of a later version of its format.
    """
    folder = shard_folder(folder, number, shard, shards)
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    data = parse_checked_json(text)
    if data is None:
        raise damaged(path, "it fails its checksum")
    if data.get("format") != FORMAT:
        raise StorageError(
            f"checkpoint file {path}: format {data.get('format')} is not format {FORMAT}: use a version "
            "of paramserver that has it"
        )
    try:
        found = _parsed(folder, data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"it is no manifest of a checkpoint ({type(error).__name__}: {error})") from error
    if (found.number, found.shard, found.shards) != (number, shard, shards):
        raise damaged(path, f"it belongs to checkpoint {found.number} of shard {found.shard} of {found.shards}")
    return found


def _parsed(folder: Path, data: dict[str, Any]) -> Manifest:
    """The manifest that has this data; an error of Python if it is none."""
    state = dict(data["state"])
    int(state.get("timeline", 0))  # `Manifest.timeline` reads it
    files = {name: FileSum(_size(one["bytes"]), int(one["crc32c"], 16)) for name, one in data["files"].items()}
    served = {
        name: TensorSpec("served", tuple(map(_size, one["shape"])), one["dtype"])
        for name, one in data["served"].items()
    }
    if lacking := [name for name in (VARIABLES, SLOTS) if name not in files]:
        raise ValueError(f"it does not name {lacking[0]}")
    worker = data.get("worker")
    return Manifest(
        folder,
        int(state.get("cut", 0)),
        int(state.get("shard", 0)),
        int(state.get("shards", 0)),
        bool(data["final"]),
        bool(data["is_cut"]),
        str(data["written"]),
        str(data["paramserver"]),
        _size(data["late"]),
        files,
        state,
        served,
        None if worker is None else dict(worker),
    )


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a size")
    return value


# --- the state as JSON ------------------------------------------------------------------------------------------------


def state_to_json(state: ShardState) -> dict[str, Any]:
    """The state as JSON data, without arrays."""
    proto = spb.ShardState()
    put_shard_state(state, proto, InlineSender())
    data: dict[str, Any] = MessageToDict(proto, preserving_proto_field_name=True)
    return data


def state_from_json(data: dict[str, Any], arrays: Mapping[str, Array]) -> ShardState:
    """The state, whose served weights have `arrays` (see `served_arrays`). Raises `Malformed`."""
    try:
        proto = ParseDict(data, spb.ShardState())
    except ParseError as error:
        raise Malformed(f"not the state of a shard: {error}") from error
    state = get_shard_state(proto, InlineReceiver())
    try:
        unread = cast(Iterable[spb.ServedState], state.served)  # without their arrays
        return replace(state, served=tuple([_with_arrays(n, one, arrays) for n, one in enumerate(unread)]))
    except KeyError as error:
        raise Malformed(f"the served weights {error} are missing") from None


def served_arrays(state: ShardState) -> dict[str, Array]:
    """The arrays of served weights by their names in the file, in the order of the state."""
    arrays: dict[str, Array] = {}
    for place, weights in enumerate(state.served):
        arrays[_key(place)] = weights.array.parts[0] if isinstance(weights.array, Packed) else weights.array
        if weights.rows is not None:
            arrays[f"{_key(place)}/rows"] = weights.rows
    return arrays


def _key(place: int) -> str:
    return f"served-{place}"


def _with_arrays(place: int, proto: spb.ServedState, arrays: Mapping[str, Array]) -> ServedState:
    array = arrays[_key(place)]
    packed = Packed(proto.form, array.shape, (array,)) if proto.form else array
    rows = arrays[f"{_key(place)}/rows"] if proto.has_rows else None
    return ServedState(proto.worker, proto.name, proto.version, packed, rows)
