"""The manifest of a checkpoint: a file with the state of the shard as JSON, and size and CRC32C of all other files."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from psserver.storage import checksummed_json, manifest
from psserver.storage.array_files import FileSum, NewFile, damaged, unreadable
from psserver.storage.checkpoint_folders import shard_folder
from pswire.errors import Malformed, StorageError
from pswire.messages import ShardState
from pswire.tensors.values import Array, TensorSpec

FORMAT = 1

#: The name of the file, and those of files that each checkpoint has.
MANIFEST, REQUIRED = "manifest.json", ("variables.safetensors", "slots.safetensors")


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is, without its arrays.

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
            return manifest.from_json(data, served or {})
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


def write_manifest(
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
        "state": manifest.to_json(state),
    } | ({} if worker is None else {"worker": worker})
    with NewFile(folder / MANIFEST) as file:
        file.write(checksummed_json.dumps(data))


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
    data = checksummed_json.loads(text)
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
    if lacking := [name for name in REQUIRED if name not in files]:
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
