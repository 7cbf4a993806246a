"""The folders of checkpoints: their names, which are there, how they are removed, and who may write.

    DIR/step-000012345/shard-0-of-2/     complete, for it has this name
    DIR/step-000012345/.shard-0-of-2.tmp being written, or left by a process that was killed (`sweep`)
    DIR/shard-0.lock                     empty; locked by the process that writes what is of shard 0 (`lock_shard`)
    DIR/shard-0-of-2.lock                the same; locked too, `shared`, while another number of shards begins from it

Several shards may write into one folder at the same time: each changes only what has its own name, and a folder of a
step is there as long as something is in it.
"""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from psserver.storage.files import lock_file, make_folder, remove_leftovers, rename_to_remove
from pswire.errors import StorageError
from pswire.plurals import pluralize

_STEP = re.compile(r"step-(\d{9,})")
_SHARD = re.compile(r"shard-(\d+)-of-(\d+)")


class FolderLock:
    """Locks of files in a folder of checkpoints, until it is closed or the process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptors: list[int] = []

    def add(self, name: str, what: str, in_use: str, *, shared: bool = False) -> None:
        """Take one more, as `lock_file`; closes all if that fails. Raises `StorageError`."""
        try:
            path, about = self._folder / f"{name}.lock", f"checkpoint folder {self._folder}, {what},"
            self._descriptors.append(lock_file(path, about, in_use, shared=shared))
        except OSError as error:
            self.close()
            raise StorageError(f"checkpoint folder {self._folder} cannot be used: {error.strerror}") from error
        except StorageError:
            self.close()
            raise

    def close(self) -> None:
        """Give all of them up; may be called again."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def lock_shard(folder: Path, shard: int, shards: int) -> FolderLock:
    """Reserve the files of a shard for this process.

    The folder is made if it is not there. A shard of this number is reserved for all numbers of shards, and this one
    also from shards of another number that begin from its state (`lock_shards_before`). Who only reads needs no lock.

    Raises `StorageError` if they are reserved already, the folder cannot be written, or its file system has no locks.
    """
    try:
        make_folder(folder)
    except OSError as error:
        raise StorageError(f"checkpoint folder {folder} cannot be used: {error.strerror}") from error
    lock = FolderLock(folder)
    in_use = "stop that server or program, or wait for its end; each job needs a folder of its own"
    lock.add(f"shard-{shard}", f"shard {shard}", in_use)
    in_use = (
        "a server of another number of shards was started, and begins from its state when a worker joins; stop that "
        "server, or start all servers of its number"
    )
    lock.add(shard_name(shard, shards), f"shard {shard} of {shards}", in_use)
    return lock


def lock_shards_before(folder: Path, shards: int) -> FolderLock:
    """Keep all shards of a job of so many from running, while shards of another number begin from their state.

    All new shards may have these locks at the same time, and none of them waits, so that no order of their starts can
    end in a deadlock. Raises `StorageError` if one of the shards runs, or as `lock_shard`.
    """
    lock = FolderLock(folder)
    in_use = (
        f"its changes would be lost on another number of shards; stop all servers of {pluralize(shards, 'shard')}, "
        "wait for their end, and start this one again"
    )
    for shard in range(shards):
        lock.add(shard_name(shard, shards), f"shard {shard} of {shards}", in_use, shared=True)
    return lock


def step_folder(folder: Path, number: int) -> Path:
    """The folder of all shards of a checkpoint."""
    return folder / f"step-{number:09d}"


def parse_step(name: str) -> int | None:
    """The number of a checkpoint whose folder has this name; None: it is no such folder."""
    step = _STEP.fullmatch(name)
    return None if step is None else int(step[1])


def shard_name(shard: int, shards: int) -> str:
    """The name of what belongs to one shard."""
    return f"shard-{shard}-of-{shards}"


def shard_folder(folder: Path, number: int, shard: int, shards: int) -> Path:
    """The folder of one shard of a checkpoint."""
    return step_folder(folder, number) / shard_name(shard, shards)


def found(folder: Path) -> dict[int, set[tuple[int, int]]]:
    """The shards (shard, shards) of each checkpoint in a folder, by number, ascending.

    Looks at names only. A folder that is not there has none. Raises `StorageError` if it cannot be read.
    """
    numbers: dict[int, set[tuple[int, int]]] = {}
    for name in _names(folder):
        if (number := parse_step(name)) is not None:
            matches = [_SHARD.fullmatch(one) for one in _names(folder / name)]
            shards = {(int(one[1]), int(one[2])) for one in matches if one is not None}
            if shards:
                numbers[number] = shards
    return dict(sorted(numbers.items()))


def available(folder: Path, shard: int, shards: int) -> list[int]:
    """The numbers of a shard's checkpoints that are complete, ascending. Errors as `found`."""
    return [number for number, there in found(folder).items() if (shard, shards) in there]


def complete(there: set[tuple[int, int]], shards: int) -> bool:
    """Whether all shards of a job of so many are among those of a checkpoint."""
    return all((shard, shards) in there for shard in range(shards))


def remove(folder: Path, number: int, shard: int, shards: int) -> None:
    """Remove a shard's checkpoint: at once and durably its name, then its files. Raises `OSError`."""
    path = shard_folder(folder, number, shard, shards)
    shutil.rmtree(rename_to_remove(path))
    remove_if_empty(path.parent)


def remove_if_empty(step: Path) -> None:
    """Remove the folder of a step if no shard has anything in it."""
    with suppress(OSError):
        step.rmdir()


def sweep(folder: Path, shard: int, shards: int) -> None:
    """Remove what a killed process of this shard has left: call it at start. Raises `StorageError`."""
    for step in [folder / one for one in _names(folder) if parse_step(one) is not None]:
        remove_leftovers(step / shard_name(shard, shards))
        remove_if_empty(step)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError(f"checkpoint folder {folder} cannot be read: {error.strerror}") from error
