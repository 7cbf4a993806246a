"""The folder of a job's checkpoints: names of what is in it, which checkpoints are there, and who may write.

    DIR/step-000012345/shard-0-of-2/     complete, for it has this name
    DIR/step-000012345/.shard-0-of-2.tmp being written, or left by a process that was killed (`sweep`)
    DIR/journal-0-of-2/                  the journal of a shard (`psserver.storage.journal_segments`)
    DIR/shard-0-of-2.json                its run file (`psserver.storage.shard_run`)
    DIR/shard-0.lock                     empty; locked by the process that writes the files of shard 0 (`lock_shard`)
    DIR/shard-0-of-2.lock                the same; also locked, shared, while another number of shards begins from it

Several shards may write into one folder at the same time: each changes only files with its own name, and the folder of
a step exists as long as it is not empty.
"""

import os
import re
from contextlib import ExitStack, suppress
from pathlib import Path

from psserver.storage.files import lock_file, make_folder, remove_folder, remove_leftovers
from pswire.errors import StorageError
from pswire.plurals import pluralize
from pswire.system.files import leftovers

_STEP = re.compile(r"step-(\d{9,})")
_SHARD = re.compile(r"shard-(\d+)-of-(\d+)")


def lock_shard(folder: Path, shard: int, shards: int) -> ExitStack:
    """Reserve the files of a shard for this process, until the returned locks are closed or the process ends.

    The folder is made if it is not there. A shard of this number is reserved for all numbers of shards, and this one
    also from shards of another number that begin from its state (`lock_shards_before`). Readers need no lock.

    Raises `StorageError` if they are reserved already, the folder cannot be written, or its file system has no locks.
    """
    try:
        make_folder(folder)
    except OSError as error:
        raise StorageError(f"checkpoint folder {folder} cannot be used: {error.strerror}") from error
    with ExitStack() as locks:
        in_use = "stop that server or program, or wait for its end; each job needs a folder of its own"
        _lock(locks, folder, f"shard-{shard}", f"shard {shard}", in_use)
        in_use = (
            "a server of another number of shards was started, and begins from its state when a worker joins; stop "
            "that server, or start all servers of its number"
        )
        _lock(locks, folder, shard_name(shard, shards), f"shard {shard} of {shards}", in_use)
        return locks.pop_all()


def lock_shards_before(folder: Path, shards: int) -> ExitStack:
    """Keep a job of this number of shards from running while another number of shards begins from its state.

    All new shards may hold these locks at the same time, and none of them waits, so no order of starts can deadlock.
    Raises `StorageError` if one of the shards runs, or as `lock_shard`.
    """
    in_use = (
        f"its changes would be lost on another number of shards; stop all servers of {pluralize(shards, 'shard')}, "
        "wait for their end, and start this one again"
    )
    with ExitStack() as locks:
        for shard in range(shards):
            _lock(locks, folder, shard_name(shard, shards), f"shard {shard} of {shards}", in_use, shared=True)
        return locks.pop_all()


def _lock(locks: ExitStack, folder: Path, name: str, what: str, in_use: str, *, shared: bool = False) -> None:
    try:
        descriptor = lock_file(folder / f"{name}.lock", f"checkpoint folder {folder}, {what},", in_use, shared=shared)
    except OSError as error:
        raise StorageError(f"checkpoint folder {folder} cannot be used: {error.strerror}") from error
    locks.callback(os.close, descriptor)


def step_folder(folder: Path, number: int) -> Path:
    """The folder of all shards of a checkpoint."""
    return folder / f"step-{number:09d}"


def parse_step(name: str) -> int | None:
    """The number of a checkpoint whose folder has this name; None: it is no such folder."""
    step = _STEP.fullmatch(name)
    return None if step is None else int(step[1])


def shard_name(shard: int, shards: int) -> str:
    """The name of files and folders of one shard."""
    return f"shard-{shard}-of-{shards}"


def shard_folder(folder: Path, number: int, shard: int, shards: int) -> Path:
    """The folder of one shard of a checkpoint."""
    return step_folder(folder, number) / shard_name(shard, shards)


def journal_folder(folder: Path, shard: int, shards: int) -> Path:
    """The folder of a shard's journal."""
    return folder / f"journal-{shard}-of-{shards}"


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
    """Whether a checkpoint, with these (shard, shards), has all shards of a job of this number."""
    return all((shard, shards) in there for shard in range(shards))


def remove(folder: Path, number: int, shard: int, shards: int) -> None:
    """Remove a shard's checkpoint: at once and durably its name, then its files. Raises `OSError`."""
    path = shard_folder(folder, number, shard, shards)
    remove_folder(path)
    remove_if_empty(path.parent)


def remove_if_empty(step: Path) -> None:
    """Remove the folder of a step if no shard has anything in it."""
    with suppress(OSError):
        step.rmdir()


def sweep(folder: Path, shard: int, shards: int) -> None:
    """Remove leftovers of a killed process of this shard, at its start. Raises `StorageError`."""
    for leftover in leftovers(folder, f"{shard_name(shard, shards)}.json"):
        with suppress(OSError):
            leftover.unlink()
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
