"""Files with secrets, and folders for them: for their user alone. Standard library only."""

import errno
import os
import stat
from pathlib import Path

from pswire.errors import ConfigurationError
from pswire.system.files import open_file, write_file
from pswire.system.host import WINDOWS

#: Bytes of a file of tokens, a certificate or a key, at most.
MAX_BYTES = 1 << 20

#: Permissions that a secret must not give: all of others, and writing for the group. The group may read, because
#: orchestrators mount secrets for a group.
_TOO_OPEN = stat.S_IRWXO | stat.S_IWGRP


def read_file(path: str | Path, what: str) -> bytes:
    """The content of `path`. Raises `ConfigurationError` about `what` if it cannot be read, or is above 1 MiB."""
    return _read(path, what, private=False)


def read_secret(path: str | Path, what: str) -> bytes:
    """As `read_file`; also `ConfigurationError` if the file's mode lets others read it, or the group write it."""
    return _read(path, what, private=not WINDOWS)


def _read(path: str | Path, what: str, *, private: bool) -> bytes:
    try:
        with open_file(path) as file:
            found = os.fstat(file.fileno())
            if private and stat.S_IMODE(found.st_mode) & _TOO_OPEN:
                mode = f"{stat.S_IMODE(found.st_mode):04o}"
                raise ConfigurationError(
                    f"{what} {path} can be read or changed by others (mode {mode}): chmod 600 {path}"
                )
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{what} {path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"{what} {path} has more than {MAX_BYTES:,} bytes: it is another file")
    return data


def write_private_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file of this mode that is complete and durable, or as before. Raises `ConfigurationError`."""
    try:
        write_file(path, data, mode=mode)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


def make_private_folder(path: Path) -> None:
    """Make a folder that only its user can read, with its parent folders where they do not exist.

    Existing folders keep their modes. Raises `OSError`; `FileNotFoundError` if another process has removed one
    meanwhile.
    """
    try:
        _make_folder(path)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_private_folder(path.parent)
        _make_folder(path)


def _make_folder(path: Path) -> None:
    """Make a folder that may be there. Raises `FileNotFoundError` if what it is in is not there, or it was removed."""
    try:
        path.mkdir(mode=0o700)
    except OSError as error:
        try:
            mode = path.stat().st_mode  # one look: another process may remove it, and make it again, at any moment
        except FileNotFoundError:
            if isinstance(error, FileExistsError) and not path.is_symlink():
                raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile", str(path)) from error
            raise error from None
        if not stat.S_ISDIR(mode):
            raise


def stamp(path: str | Path) -> tuple[int, ...]:
    """A value that differs when the file is another one, or was written since; () if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
