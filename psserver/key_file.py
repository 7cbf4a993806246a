"""The key of this user's servers: by default, one user's servers on one machine accept each other's tokens.

Standard library only.
"""

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

from pswire.errors import ConfigurationError
from pswire.security.private_files import make_private_folder
from pswire.system.files import open_file, write_file

log = logging.getLogger(__name__)

#: Bytes of a key.
KEY_BYTES = 32


def user_key(folder: Path) -> bytes:
    """The key in `folder`, which is made with its first use; a random one if nothing can be written there.

    Raises `ConfigurationError` for a file that other users may read or write, or that has no key.
    """
    path = folder / "job.key"
    try:
        with suppress(FileNotFoundError):
            return _read(path)
        _make(path)
        return _read(path)
    except OSError as error:
        log.warning("no key in %s (%s): only this server accepts its tokens, until it restarts", path, error)
        return secrets.token_bytes(KEY_BYTES)


def _read(path: Path) -> bytes:
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        key = file.read(KEY_BYTES + 1)
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigurationError(f"{path} has the key of your servers, and others may read it: chmod 600, or remove it")
    if len(key) != KEY_BYTES:
        raise ConfigurationError(
            f"{path} has {len(key)} bytes, a key has {KEY_BYTES}: remove it, and start all servers"
        )
    return key


def _make(path: Path) -> None:
    """Make the file, complete or not at all; another process may make it at the same time."""
    make_private_folder(path.parent)
    with suppress(FileExistsError):
        write_file(path, secrets.token_bytes(KEY_BYTES), mode=0o600, exclusive=True)
