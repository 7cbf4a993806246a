"""Segments: memory shared by two processes of the same user on one host, as files in /dev/shm that both have mapped.

Creates them, opens those of other processes, and removes those of dead processes. Not multiprocessing.shared_memory,
whose tracker removes segments that other processes still use.
"""

import hmac
import mmap
import os
import re
import secrets
import stat
import weakref
from contextlib import suppress

from pswire.system.host import WINDOWS

if not WINDOWS:  # no server and no worker of one runs there
    import fcntl

#: The folder of the files: in memory, and visible to all processes of a host or container.
FOLDER = "/dev/shm"

#: The offset of the first array in a segment; the token precedes it.
DATA_OFFSET = 64

_NAME = re.compile(r"paramserver-[0-9a-f]{32}")
_MODE = 0o600
_TOKEN = 16  # bytes
#: On Linux all pages are mapped at once, and not each when it is first touched.
_MAP_FLAGS = 0 if WINDOWS else mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


class NotShared(Exception):
    """Memory cannot be shared, for the reason in the message; another tensor transport is used instead."""


class Segment:
    """Memory of this process that others of the same user can map by its name. Made by `create`.

    The memory lives as long as it is mapped. Call `unlink` when the other side has opened the segment; otherwise the
    name is removed when this object is deleted or the process ends, and after a kill -9 by the next `sweep`.

    Attributes:
        memory: the file, mapped, zero from `DATA_OFFSET` on. Never close it: arrays are views of it, and keep it alive.
        nbytes: of the file, in whole pages.
        number: on the stream that it is attached to.
        token: the first bytes of the file, by which the other side recognizes it.
    """

    def __init__(self, name: str, descriptor: int, memory: mmap.mmap, number: int) -> None:
        self._forgotten = weakref.finalize(self, _forget, _path(name), descriptor, os.getpid())
        self.name, self.memory, self.nbytes, self.number = name, memory, len(memory), number
        self.token = secrets.token_bytes(_TOKEN)
        memory[:_TOKEN] = self.token

    @classmethod
    def create(cls, nbytes: int, number: int = 0) -> "Segment":
        """A new segment with at least `nbytes` from `DATA_OFFSET` on. Takes 1 ms for about 2 MB: the kernel clears it.

        Memory is reserved here, or `NotShared`: writing to more than /dev/shm has would end the process (SIGBUS).
        """
        whole = -(-(DATA_OFFSET + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        name, descriptor = _new_file()
        try:
            os.posix_fallocate(descriptor, 0, whole)
            memory = _map(descriptor, whole)
        except OSError as error:
            _forget(_path(name), descriptor, os.getpid())
            raise NotShared(f"no room in {FOLDER} for {whole:,} bytes: {error.strerror}") from error
        return cls(name, descriptor, memory, number)

    def unlink(self) -> None:
        """Removes the name; mapped memory stays. May be called again."""
        self._forgotten()


def _new_file() -> tuple[str, int]:
    """Name and descriptor of a new file, locked: that tells `sweep`, also in other containers, that its owner lives."""
    if not os.path.isdir(FOLDER):
        raise NotShared(f"no {FOLDER} on this machine")
    for _ in range(8):
        name = f"paramserver-{secrets.token_hex(16)}"
        try:
            descriptor = os.open(_path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
        except OSError as error:
            raise NotShared(f"cannot make a file in {FOLDER}: {error.strerror}") from error
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.lstat(_path(name))):
                return name, descriptor
        _forget(_path(name), descriptor, os.getpid())  # a concurrent `sweep` removed it before it was locked
    raise NotShared(f"files in {FOLDER} cannot be locked")


def _forget(path: str, descriptor: int, owner: int) -> None:
    """Removes name and lock, unless in a fork of the owner, which has copies of both."""
    if os.getpid() == owner:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def open_segment(name: str, nbytes: int, token: bytes) -> mmap.mmap:
    """The memory of another process's segment, as that process has described it.

    Its owner can truncate it, which ends this process (SIGBUS); but the same user could end it anyway. Raises
    `NotShared` if there is no such file, or it is not as described, or not as `Segment` makes them.
    """
    if not _NAME.fullmatch(name):
        raise NotShared(f"{name!r} is not the name of a segment")
    try:
        descriptor = os.open(_path(name), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotShared("this process cannot see the file: it is on another host or in another container") from None
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
        raise NotShared("the file does not begin with the token: it is a different file")
    return memory


def _check(found: os.stat_result, nbytes: int) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_dev != os.stat(FOLDER).st_dev:
        raise NotShared(f"it is not a regular file in {FOLDER}")
    if found.st_uid != os.geteuid():
        raise NotShared(f"the file belongs to user {found.st_uid}, and this process to user {os.geteuid()}")
    if stat.S_IMODE(found.st_mode) != _MODE:
        raise NotShared(f"the file has mode {stat.S_IMODE(found.st_mode):04o}, not {_MODE:04o}")
    if found.st_size != nbytes or nbytes < DATA_OFFSET:
        raise NotShared(f"the file has {found.st_size:,} bytes, and {nbytes:,} were announced")
    if found.st_blocks * 512 < nbytes:
        raise NotShared(f"only {found.st_blocks * 512:,} of the file's {nbytes:,} bytes have memory")


def sweep() -> int:
    """Removes segments of this user whose owners are dead; returns their number. Raises nothing."""
    with suppress(OSError):
        return sum([_swept(_path(name)) for name in os.listdir(FOLDER) if _NAME.fullmatch(name)])
    return 0


def _swept(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # gone in the meantime, or another user's
        return False
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        return True
    except OSError:  # its owner lives, or another process was faster
        return False
    finally:
        os.close(descriptor)


def _path(name: str) -> str:
    return os.path.join(FOLDER, name)


def _map(descriptor: int, nbytes: int) -> mmap.mmap:
    return mmap.mmap(descriptor, nbytes, _MAP_FLAGS)
