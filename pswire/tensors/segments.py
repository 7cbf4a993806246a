"""Memory that two processes of one host and one user share: files in /dev/shm that both have mapped.

Makes them, opens those that another process has made, and removes those of the dead; what lies in them is the business
of `pswire.tensors.shared_memory`. Uses no multiprocessing.shared_memory, whose tracker removes what other processes
still use. Imports the standard library alone.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
import secrets
import stat
import weakref
from contextlib import suppress
from mmap import MAP_SHARED, PAGESIZE, mmap

#: Where the files are: memory and not a disk, seen by all processes of a host, or of a container.
FOLDER = "/dev/shm"

#: The first byte of a segment that is for arrays; the token is before it.
BEGIN = 64

_NAME = re.compile(r"paramserver-[0-9a-f]{32}")
_MODE = 0o600
_TOKEN = 16  # bytes
_TRIES = 8
_MAPPED = MAP_SHARED
with suppress(ImportError):  # Linux alone has it: all pages are mapped at once, and not each when it is first touched
    from mmap import MAP_POPULATE

    _MAPPED |= MAP_POPULATE


class NotShared(Exception):
    """Memory cannot be shared, and the message says why. None of our errors: tensors take another lane then."""


class Segment:
    """Memory of this process that others of the same user can map as well, as long as it has its name.

    Made by `create`. The memory lives as long as somebody has it mapped, the name until `unlink`: call it when the
    other side has opened the segment; otherwise it is done when this object or its process ends. After a kill -9 the
    name stays, until somebody sweeps.

    Attributes:
        name: of the file in `FOLDER`.
        memory: the file, mapped, zero from `BEGIN` on. Never close it: arrays are views of it, and keep it alive.
        nbytes: of the file, in whole pages.
        token: what the file begins with.
    """

    def __init__(self, name: str, descriptor: int, memory: mmap, number: int) -> None:
        self._forgotten = weakref.finalize(self, _forget, _path(name), descriptor, os.getpid())
        self.name, self.memory, self.nbytes, self.number = name, memory, len(memory), number
        self.token = secrets.token_bytes(_TOKEN)
        memory[:_TOKEN] = self.token

    @classmethod
    def create(cls, nbytes: int, number: int = 0) -> Segment:
        """A new one, which has `nbytes` at least from `BEGIN` on. Takes 1 ms for about 2 MB: the system clears them.

        Its memory is reserved here: to write where a full /dev/shm has none would end the process (SIGBUS).

        Raises:
            NotShared: there is no such folder, or not so much room in it.
        """
        whole = -(-(BEGIN + nbytes) // PAGESIZE) * PAGESIZE
        name, descriptor = _new_file()
        try:
            os.posix_fallocate(descriptor, 0, whole)
            memory = _map(descriptor, whole)
        except OSError as error:
            _forget(_path(name), descriptor, os.getpid())
            raise NotShared(f"no room in {FOLDER} for {whole:,} bytes: {error.strerror}") from error
        return cls(name, descriptor, memory, number)

    def unlink(self) -> None:
        """Takes the name away; who has the memory keeps it. May be called again."""
        self._forgotten()


def _new_file() -> tuple[str, int]:
    """The name and the descriptor of a new file, locked: by that `sweep` knows that its owner lives.

    A lock ends with its process, however that ends, and means the same in all containers, unlike a process's number.
    """
    if not os.path.isdir(FOLDER):
        raise NotShared(f"no {FOLDER} on this machine")
    for _ in range(_TRIES):
        name = f"paramserver-{secrets.token_hex(16)}"
        try:
            descriptor = os.open(_path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
        except OSError as error:
            raise NotShared(f"cannot make a file in {FOLDER}: {error.strerror}") from error
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.lstat(_path(name))):
                return name, descriptor
        _forget(_path(name), descriptor, os.getpid())  # a sweeper came before the lock
    raise NotShared(f"files in {FOLDER} cannot be locked")


def _forget(path: str, descriptor: int, owner: int) -> None:
    """Ends name and lock. A fork of the owner has copies of both and owns neither."""
    if os.getpid() == owner:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def open_segment(name: str, nbytes: int, token: bytes) -> mmap:
    """The memory of a segment that another process has made, and has described so.

    Whoever has made it can cut it off, which ends this process (SIGBUS); but the same user can do that anyway.

    Raises:
        NotShared: there is no such file here, or it is not as it was described, or not as `Segment` makes them.
    """
    if not _NAME.fullmatch(name):
        raise NotShared(f"{name!r} is no name of a segment")
    try:
        descriptor = os.open(_path(name), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotShared("this process cannot see the file: it is of another host or container") from None
    except OSError as error:
        raise NotShared(f"cannot open the file: {error.strerror}") from error
    try:
        _check(os.fstat(descriptor), nbytes)
        memory = _map(descriptor, nbytes)
    except OSError as error:
        raise NotShared(f"cannot map {nbytes:,} bytes: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(token) < _TOKEN or not hmac.compare_digest(memory[: len(token)], token):
        raise NotShared("the file does not begin with the token: it is another one")
    return memory


def _check(found: os.stat_result, nbytes: int) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_dev != os.stat(FOLDER).st_dev:
        raise NotShared(f"it is no file of {FOLDER}")
    if found.st_uid != os.geteuid():
        raise NotShared(f"the file belongs to user {found.st_uid}, and this process to user {os.geteuid()}")
    if stat.S_IMODE(found.st_mode) != _MODE:
        raise NotShared(f"the file has mode {stat.S_IMODE(found.st_mode):04o}, not {_MODE:04o}")
    if found.st_size != nbytes or nbytes < BEGIN:
        raise NotShared(f"the file has {found.st_size:,} bytes, and {nbytes:,} were announced")
    if found.st_blocks * 512 < nbytes:
        raise NotShared(f"only {found.st_blocks * 512:,} of the file's {nbytes:,} bytes have memory")


def sweep() -> int:
    """Removes the segments of this user whose owners are dead; returns how many there were. Raises nothing."""
    try:
        names = os.listdir(FOLDER)
    except OSError:
        return 0
    return sum([_swept(name) for name in names if _NAME.fullmatch(name)])


def _swept(name: str) -> bool:
    try:
        descriptor = os.open(_path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # gone in the meantime, or another user's
        return False
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(_path(name))
    except OSError:  # its owner lives, or somebody else was faster
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _path(name: str) -> str:
    return os.path.join(FOLDER, name)


def _map(descriptor: int, nbytes: int) -> mmap:
    return mmap(descriptor, nbytes, _MAPPED)
