"""The run file of a shard: facts for a later start, written before the run acknowledges anything."""

from dataclasses import asdict, dataclass
from pathlib import Path

from psserver.storage.files import checked_json, parse_checked_json
from psserver.storage.folders import shard_name
from pswire.errors import DamagedFile, StorageError
from pswire.system.files import write_file

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Run:
    """The last run of a shard that may have acknowledged anything.

    Attributes:
        timeline: that it followed.
        timeline_cut: the cut that this timeline began with.
        began_from: the number of the checkpoint that the run began from.
        journal: whether it has written a journal.
        gave_up: whether it has begun with the late changes of the checkpoint, as a cut, and gave up what came after it.
        provisional: it has accepted no change since it began from the state of another number of shards, which is
            still the job's as long as that is so.
    """

    timeline: int
    timeline_cut: int
    began_from: int
    journal: bool
    gave_up: bool = False
    provisional: bool = False


#: The fields of a run, and fields that earlier versions did not write.
_TYPES: dict[str, type] = {"timeline": int, "timeline_cut": int, "began_from": int, "journal": bool}
_LATER: dict[str, type] = {"gave_up": bool, "provisional": bool}


def run_path(folder: Path, shard: int, shards: int) -> Path:
    """The file, beside the checkpoints."""
    return folder / f"{shard_name(shard, shards)}.json"


def read_run(folder: Path, shard: int, shards: int) -> Run | None:
    """The last run; None: there was none. Raises `DamagedFile`, or `StorageError` if the file may not be read."""
    path = run_path(folder, shard, shards)
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"run file {path} cannot be read: {error.strerror}") from error
    data = parse_checked_json(text)
    if data is None:
        raise _damaged(path, "it fails its checksum")
    if data.pop("format", None) != FORMAT:
        raise StorageError(f"run file {path}: it has another format than {FORMAT}: use a version that has it")
    if not _TYPES.items() <= {name: type(value) for name, value in data.items()}.items() <= (_TYPES | _LATER).items():
        raise _damaged(path, "it has other fields than those of a run")
    run = Run(**data)
    if min(run.timeline, run.timeline_cut, run.began_from) < 0:
        raise _damaged(path, "a number in it is negative")
    return run


def _damaged(path: Path, reason: str) -> DamagedFile:
    return DamagedFile(
        f"run file {path}: {reason}: it is damaged; restore it from a copy, or remove it: the shard then starts from "
        "its newest checkpoint as if something newer had been lost"
    )


def write_run(folder: Path, shard: int, shards: int, run: Run) -> None:
    """Replace the file, durably. Raises `OSError`."""
    write_file(run_path(folder, shard, shards), checked_json({"format": FORMAT} | asdict(run)))
