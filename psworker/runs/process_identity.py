"""The identity of a process in a file: whether the one that wrote it still lives. Imports no package but our own."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from pswire.system.host import WINDOWS

_PROC = Path("/proc")
#: The field of /proc/PID/stat with the start of the process, in clock ticks since boot, from the state on (proc(5)).
_START_FIELD = 22 - 3


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process on a host, since when that has booted; ids are used again, so `started` tells two apart.

    `boot` and `started` are "" and 0 on systems that do not have them in /proc.
    """

    host: str
    process: int
    boot: str = ""
    started: int = 0

    @classmethod
    def of_this_process(cls) -> "ProcessIdentity":
        """This process."""
        return cls(socket.gethostname(), os.getpid(), _boot(), _started(os.getpid()))

    def is_alive(self) -> bool | None:
        """True if the process lives; None if it was on another host, where this one cannot look."""
        if self.host != socket.gethostname():
            return None
        if self.boot != _boot() or WINDOWS:
            return False
        if self.started:
            return _started(self.process) == self.started
        try:
            os.kill(self.process, 0)  # sends nothing
        except ProcessLookupError:
            return False
        except PermissionError:  # of another user
            return True
        return True


def _boot() -> str:
    return _read(_PROC / "sys/kernel/random/boot_id").strip()


def _started(process: int) -> int:
    """The start of a process, in clock ticks since boot; 0 if it does not live, or if that is unknown."""
    state = _read(_PROC / str(process) / "stat").rpartition(")")[2].split()  # its name may have blanks and parentheses
    return int(state[_START_FIELD]) if len(state) > _START_FIELD and state[0] not in "ZX" else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
