"""Opening of files of settings, secrets and results, whose names people give. Standard library only."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


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
