"""Tokens of a cluster: made by `psworker local` and `psworker ray`, found by the same user's commands on this machine.

They are in a folder of the user's alone, `paramserver-UID` in the folder for temporary files, or where another user has
made that one, `paramserver-UID-RANDOM`. It has one folder for each cluster, which holds a lock on it. What a killed one
has left is removed by the next. Standard library only.
"""

import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pswire.errors import ConfigurationError
from pswire.security.private_files import read_secret, write_private_file
from pswire.security.token_files import Role, add_token
from pswire.system.host import WINDOWS

log = logging.getLogger(__name__)

_PREFIX, _LOCK = "cluster-", "lock"

#: Attempts to make a folder in one that others remove when it is empty.
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class LocalTokens:
    """The private files of a cluster: the servers' token file, and a file with a token of each role."""

    folder: Path

    @property
    def servers(self) -> Path:
        """The token file of the servers."""
        return self.folder / "tokens"

    def token(self, role: Role) -> Path:
        """The file with the token of this role."""
        return self.folder / str(role)

    def read(self, role: Role) -> str:
        """The token of this role. Raises `ConfigurationError`."""
        return read_secret(self.token(role), "the token file").decode().strip()

    def publish(self, addresses: Sequence[str]) -> None:
        """Let commands of this user find the admin's token by the addresses of the servers."""
        write_private_file(self.folder / "addresses", "".join([f"{_key(one)}\n" for one in addresses]).encode())


@contextmanager
def local_tokens(server_tokens: bytes = b"") -> Iterator[LocalTokens]:
    """New tokens for the servers and workers of a cluster, which are removed at the end.

    The servers also accept the tokens in `server_tokens`, the content of a token file. Raises `ConfigurationError` if
    the folder cannot be used.
    """
    with private_folder() as folder:
        tokens = LocalTokens(folder)
        if server_tokens:
            write_private_file(tokens.servers, server_tokens)
        for role in Role:
            token = add_token(tokens.servers, f"{folder.name}-{role}", role)
            write_private_file(tokens.token(role), f"{token}\n".encode())
        yield tokens


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder of this user alone, removed at the end; a killed process's folder is removed by the next process.

    Raises `ConfigurationError` if the folder cannot be used.
    """
    folder, lock = _new_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        with suppress(OSError):  # others are there
            folder.parent.rmdir()


def _new_folder() -> tuple[Path, int]:
    """A new folder and its lock, made while no other command makes or removes one."""
    import fcntl  # not on Windows, where there are no local clusters

    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError), _opened(home := _home()) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _sweep(home)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            return folder, lock
    raise ConfigurationError(f"the folder {_first()} for the tokens of local clusters is removed again and again")


@contextmanager
def _opened(home: Path) -> Iterator[int]:
    """A descriptor of the folder, which the end of another cluster may remove. Raises `OSError`."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def local_token(address: str) -> str:
    """The admin's token of this user's cluster that has a server at `address`; "" if there is none."""
    if WINDOWS:
        return ""
    for folder in [one for home in _homes() for one in sorted(home.glob(f"{_PREFIX}*"))]:
        with suppress(ConfigurationError, UnicodeDecodeError):  # it ends, or was begun, at this moment
            if _key(address) in read_secret(folder / "addresses", "the file").decode().splitlines():
                return LocalTokens(folder).read(Role.ADMIN)
    return ""


def _first() -> Path:
    """The first choice of a folder for all clusters of this user."""
    return Path(tempfile.gettempdir()) / f"paramserver-{os.getuid()}"


def _homes() -> list[Path]:
    """The folders for clusters of this user that are there, and are its alone."""
    first = _first()
    return [one for one in (first, *sorted(first.parent.glob(f"{first.name}-*"))) if _is_private(one)]


def _home() -> Path:
    """A folder for clusters, which is made if there is none. Raises `ConfigurationError`."""
    first = _first()
    try:
        with suppress(FileExistsError):
            first.mkdir(mode=0o700)
        if homes := _homes():
            return homes[0]
        fresh = Path(tempfile.mkdtemp(prefix=f"{first.name}-", dir=first.parent))
    except OSError as error:
        raise ConfigurationError(
            f"the folder {first} for the tokens of local clusters cannot be made: {error.strerror}"
        ) from error
    if os.path.lexists(first):
        log.warning("%s is not a folder of this user alone: tokens of clusters are in %s", first, fresh)
    return fresh


def _is_private(folder: Path) -> bool:
    """True if it is a folder of this user that no other user can read."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _key(address: str) -> str:
    return address.replace("localhost:", "127.0.0.1:", 1) if address.startswith("localhost:") else address


def _sweep(home: Path) -> None:
    """Remove the folders of killed clusters, whose locks are free."""
    import fcntl

    for folder in home.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
