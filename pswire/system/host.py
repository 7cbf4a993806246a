"""What this process is and may use of the machine: its name, cores, and memory, of which a container may have less.

Asks the system at each call and changes nothing. Standard library only.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path, PurePosixPath

__all__ = ["cores", "memory", "memory_limits", "process_name", "process_number"]

#: The inodes of the machine's own namespace of process ids, and from where on others get theirs (linux/proc_ns.h).
_OUTERMOST, _OTHERS = 0xEFFFFFFC, 0xF0000000


def process_name() -> str:
    """A name that no other process of this host has, and none of another unless the hosts have the same name."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # no Linux
        namespace = _OUTERMOST
    return f"{socket.gethostname()}-{process_number(os.getpid(), namespace)}"


def process_number(process: int, namespace: int) -> str:
    """The process id; and where ids begin anew, as in a container, which may have its host's name, one of that place.

    Args:
        process: its id.
        namespace: the inode of the namespace that the id belongs to (pid_namespaces(7)).
    """
    if namespace == _OUTERMOST:
        return str(process)
    return f"{namespace - _OTHERS if namespace >= _OTHERS else namespace}.{process}"  # not every kernel is Linux


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory that this process may use: all of the machine's, or what its control groups leave of it."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *memory_limits(Path("/"))])


#: Where the groups of a hierarchy are and which file has their limit, by its controllers: cgroup v2 names none.
_LIMITS = {"": ("sys/fs/cgroup", "memory.max"), "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes")}


def memory_limits(root: Path) -> list[int]:
    """Bytes that the control groups of this process allow, and the groups they are in; none that cannot be read.

    A line of /proc/self/cgroup is `hierarchy:controllers:path` (cgroups(7)). In v1 memory may share its hierarchy with
    other controllers, with commas between, and is linked as `memory` then. In a container the path may be that of the
    machine, where in the container the group is mounted as the outermost: so a folder may be missing, and the
    outermost counts as well. Without a limit v2 says "max", and v1 a number beyond any memory. What is no such line,
    and a limit of 0, under which nothing could run, is passed over.

    Args:
        root: the folder that has `proc` and `sys`; / but for tests.
    """
    limits = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        controllers, colon, path = line.partition(":")[2].partition(":")
        kind = "memory" if "memory" in controllers.split(",") else controllers
        if colon and kind in _LIMITS:
            mount, name = _LIMITS[kind]
            group = PurePosixPath(path.lstrip("/"))
            texts = [_read(root / mount / folder / name).strip() for folder in (group, *group.parents)]
            limits += [int(text) for text in texts if text.isdecimal() and int(text)]
    return limits


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # no Linux, no such controller, or not ours to read
        return ""
