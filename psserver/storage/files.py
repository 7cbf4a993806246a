"""Files that are complete or not there, and writes that reach the disk.

A rename is atomic, but it is durable only once the folder has been synced, and it may reach the disk before the data of
the renamed file unless that file was synced first.
"""

import errno
import fcntl
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

#: Buffers that one call of `pwritev` accepts.
MAX_BUFFERS = os.sysconf("SC_IOV_MAX")


def sync_data(descriptor: int) -> None:
    """Return when the data of a file, and its size, are on the disk. Raises `OSError`.

    After an error nothing that was written since the last success may be trusted, even if a second call succeeds: the
    kernel reports a failed write once and then regards the pages as clean.
    """
    if sys.platform == "darwin":  # fsync does not empty the disk's own cache there
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def sync_path(path: Path) -> None:
    """Sync a file, or a folder: the names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def write_file(path: Path, data: bytes) -> None:
    """Write a small file that is complete, durable, or not there. Replaces `path`. Raises `OSError`."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_all(descriptor, [memoryview(data)], 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_path(path.parent)
