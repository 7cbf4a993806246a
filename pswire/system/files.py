"""Files that are opened by a name that people give, and files that are replaced whole or not at all.

A rename is atomic, but it is durable only once the folder has been synced, and it may reach the disk before the data of
the renamed file unless that file was synced first.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pswire.system.host import WINDOWS


def open_file(path: str | Path) -> BinaryIO:
    """A regular file, for reading.

    A pipe without a writer would be waited for without end, and a device may have any number of bytes, so they are
    refused. Raises `OSError`.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, and no file", str(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def sync_path(path: str | Path) -> None:
    """Sync a file, or a folder: the names in it. Windows cannot open folders, so there theirs are not synced."""
    if WINDOWS and os.path.isdir(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes, *, mode: int | None = None, exclusive: bool = False) -> None:
    """Write a file that is complete and durable, or as before. Arguments and errors as for `new_file`."""
    with new_file(path, mode=mode, exclusive=exclusive) as file:
        file.write(data)


@contextmanager
def new_file(path: Path, *, mode: int | None = None, exclusive: bool = False) -> Iterator[BinaryIO]:
    """A file that takes the place of `path`, complete and durable, when the block ends; if it raises, nothing changes.

    Args:
        path: of the file. A link is replaced, not the file it refers to.
        mode: its permissions, whatever the umask; until then only its user can read it. None: as of any new file.
        exclusive: raise `FileExistsError` if there is a file already.

    Raises:
        FolderNotSynced: the file is there, and may be as before after a power failure.
        OSError: it cannot be written.
    """
    first_mode = 0o666 if mode is None else 0o600
    with replacement(path, exclusive=exclusive) as temporary:
        with open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, first_mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)


@contextmanager
def replacement(path: Path, *, durable: bool = True, exclusive: bool = False) -> Iterator[Path]:
    """An unused path for what takes the place of `path` when the block ends; if it raises, nothing changes.

    What the block makes there must be closed, and synced if it is to be `durable`. Several processes may replace one
    file at the same time. A killed one leaves a file that `leftovers` finds. Errors as for `new_file`.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        if exclusive:
            os.link(temporary, path)
            temporary.unlink()
        else:
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        try:
            sync_path(path.parent)
        except OSError as error:
            raise FolderNotSynced(error.errno, f"its folder could not be synced: {error.strerror}") from error


class FolderNotSynced(OSError):
    """A file was replaced, but a power failure may undo that."""


def leftovers(folder: Path, name: str) -> list[Path]:
    """Temporary files that killed processes have left beside files whose name matches this pattern."""
    return list(folder.glob(f".{name}.*.tmp"))
