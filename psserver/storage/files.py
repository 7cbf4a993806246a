"""Helpers of the storage: folders that are complete or not there, locks, synced writes, and JSON with a checksum.

`pswire.system.files` replaces single files.
"""

import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from crc32c import crc32c

from pswire.errors import StorageError
from pswire.security.private_files import make_private_folder
from pswire.system.files import sync_path

#: Synced bytes of a file that is being written after which their pages are given up (`forget_pages`).
FORGET_BYTES = 16 << 20

#: Buffers that one call of `pwritev` accepts.
MAX_BUFFERS = os.sysconf("SC_IOV_MAX")

#: Attempts to make a folder in one that others remove when it is empty.
ATTEMPTS = 100


def temporary_path(path: Path) -> Path:
    """Where a folder is written before it takes its name: beside it. One that is there was left by a crash."""
    return path.with_name(f".{path.name}.tmp")


def _renamed_path(path: Path) -> Path:
    """Where a folder is while it is being removed. One that is there was left by a crash."""
    return path.with_name(f".{path.name}.old")


def sync_data(descriptor: int) -> None:
    """Sync the data of a file, and its size, to the disk. Raises `OSError`.

    After an error, no write since the last success can be trusted, even if a second call succeeds: the kernel reports a
    failed write once and then marks the pages clean.
    """
    if sys.platform == "darwin":  # fsync does not empty the disk's own cache there
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def forget_pages(descriptor: int, start: int, end: int) -> None:
    """Drop the kernel's cached copy of synced bytes that will not be read soon.

    The next write reuses the same pages of memory. Fresh ones cost a virtual machine that returns free memory to
    its host ten times as much as the copy into them.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def lock_file(path: Path, what: str, in_use: str, *, shared: bool = False) -> int:
    """Reserve a file, which is made if it is not there, until the returned descriptor is closed, or the process ends.

    Several processes may have it `shared` at the same time. Never waits.

    Raises `OSError` if it cannot be opened, `StorageError` about `what` if it is `in_use` or the file system has no
    locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        in_use = f"is in use by another process: {in_use}"
        no_locks = f"cannot be locked: {error.strerror}; use a folder on a file system that has locks (flock)"
        reason = in_use if isinstance(error, BlockingIOError) else no_locks
        raise StorageError(f"{what} {reason}") from error
    return descriptor


def make_folder(path: Path) -> None:
    """Make a folder as `make_private_folder` does, durably. Raises `OSError`."""
    made = [one for one in (path, *path.parents) if not one.exists()]
    make_private_folder(path)
    for one in made:
        sync_path(one.parent)


def write_all(descriptor: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Write buffers of bytes, in order, to a place of a file, without copying them. Raises `OSError`."""
    views, index = list(buffers), 0
    while index < len(views):
        written = os.pwritev(descriptor, views[index : index + MAX_BUFFERS], offset)
        if not written:
            raise OSError(errno.EIO, "the disk accepts no bytes")
        offset += written
        while index < len(views) and written >= views[index].nbytes:
            written -= views[index].nbytes
            index += 1
        if written:
            views[index] = views[index][written:]


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make a folder that is complete, durable, or not there.

        with new_folder(Path("checkpoints/step-000000100/shard-0-of-2")) as folder:
            (folder / "manifest.json").write_bytes(data)

    The block gets an empty temporary folder, which takes the place `path` when the block ends and all in it is synced.
    If anything raises, the temporary folder is removed, and so are parents that were made for it and are empty. Two
    callers must not make the same folder at the same time.

    Raises:
        FileExistsError: the folder is there already; it is not changed.
        OSError: it cannot be written.
    """
    if path.exists():
        raise FileExistsError(errno.EEXIST, "the folder is there already", str(path))
    temporary = temporary_path(path)
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        if temporary.exists():
            shutil.rmtree(temporary)
        _make_with_parents(temporary)
        yield temporary
        for folder, _, names in os.walk(temporary, topdown=False):
            for name in names:
                sync_path(Path(folder, name))
            sync_path(Path(folder))
        temporary.rename(path)
        temporary = path
        for parent in [path.parent, *(parent.parent for parent in made)]:
            sync_path(parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for parent in made:
            with suppress(OSError):  # another shard may write to it
                parent.rmdir()
        raise


def remove_folder(path: Path) -> None:
    """Remove a folder, if it is there: at once and durably its name, since a part would look complete, then its files.

    Raises `OSError`.
    """
    remove_leftovers(path)
    if path.exists():
        renamed = _renamed_path(path)
        path.rename(renamed)
        sync_path(path.parent)
        shutil.rmtree(renamed)


def remove_leftovers(path: Path) -> None:
    """Remove what a killed process has left of making (`new_folder`) or removing a folder."""
    for leftover in (temporary_path(path), _renamed_path(path)):
        shutil.rmtree(leftover, ignore_errors=True)


def _make_with_parents(path: Path) -> None:
    """Make a new folder and its parents, which other processes may make or remove meanwhile. Raises `OSError`."""
    for attempt in range(ATTEMPTS):
        try:
            make_private_folder(path.parent)
            path.mkdir(mode=0o700)
        except FileNotFoundError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


def checked_json(data: dict[str, Any]) -> bytes:
    """JSON with a checksum of its text: `{"crc32c": "...", "manifest": {...}}`."""
    return _with_checksum(json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1).encode())


def parse_checked_json(text: bytes) -> dict[str, Any] | None:
    """The data of such a text; None: it is damaged."""
    body = text[len(_with_checksum(b"")) - len(_END) : -len(_END)]
    try:
        data = json.loads(body) if _with_checksum(body) == text else None
        return data if isinstance(data, dict) else None
    except (ValueError, RecursionError):
        return None


_END = b"}\n"


def _with_checksum(body: bytes) -> bytes:
    return b'{"crc32c": "%08x", "manifest": %b' % (crc32c(body), body) + _END
