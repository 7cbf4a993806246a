"""Unix sockets of a server for processes of this user on this host, and the removal of those of killed servers."""

import errno
import os
import secrets
import socket
import stat
from contextlib import suppress
from pathlib import Path

from pswire.system.files import replacement
from pswire.tensors import shared_segments
from pswire.tensors.shared_segments import NotShared

#: The option of a socket by which it takes descriptors (asm-generic/socket.h), since Linux 6.16.
_SO_PASSRIGHTS = 83


def listen(queue: int) -> tuple[socket.socket, str]:
    """A listening socket and the name of its file in `pswire.tensors.shared_segments.FOLDER`, for this user only.

    It appears when it can be connected to, so that `sweep` takes none for a dead one. Raises `NotShared`.
    """
    name = f"paramserver-{secrets.token_hex(16)}"
    path = shared_segments.socket_path(name)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listening.fileno(), 0o600)  # the mode of the file, from its beginning
        with suppress(OSError):  # older systems
            listening.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
        with replacement(Path(path), durable=False) as temporary:
            listening.bind(str(temporary))
            listening.listen(queue)
    except OSError as error:
        listening.close()
        raise NotShared(f"cannot make a socket in {shared_segments.FOLDER}: {error.strerror or error}") from error
    return listening, name


def sweep() -> int:
    """Remove the sockets of servers of this user that were killed; their number. Raises nothing."""
    with suppress(OSError):
        return sum([_swept(name) for name in os.listdir(shared_segments.FOLDER)])
    return 0


def _swept(name: str) -> bool:
    """True if no server listens there, and the file was removed."""
    try:
        path = shared_segments.socket_path(name)
        found = os.lstat(path)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            if probe.connect_ex(path) != errno.ECONNREFUSED:
                return False
        os.unlink(path)
    except (NotShared, OSError):  # another file, or gone in the meantime
        return False
    return True
