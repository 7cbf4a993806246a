"""Name, cores, memory limits and allocator of this process. Standard library only."""

import ctypes
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pswire.errors import ConfigurationError

#: Whether this is Windows, where servers and clusters do not run, and a program in one process does.
WINDOWS = sys.platform == "win32"

#: Inode of the machine's own namespace of process ids, and the first of the others (linux/proc_ns.h).
_OUTERMOST, _OTHERS = 0xEFFFFFFC, 0xF0000000


def process_name() -> str:
    """A name that is unique on this host, and among hosts with different names."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # no Linux
        namespace = _OUTERMOST
    return f"{socket.gethostname()}-{process_number(os.getpid(), namespace)}"


def process_program() -> str:
    """The name of the program that runs in this process, without its folder and extension; 100 characters at most.

    In Jupyter, whose kernels have one program for all notebooks, it is `notebook`.
    """
    name = Path(sys.argv[0]).stem[:100] if sys.argv else ""
    if name == "ipykernel_launcher":
        return "notebook"
    return name if name.isprintable() and not name.startswith("-") else ""  # python -c


def process_number(process: int, namespace: int) -> str:
    """The process id; in a namespace of its own (by its inode), as in a container, with the namespace's number."""
    if namespace == _OUTERMOST:
        return str(process)
    return f"{namespace - _OTHERS if namespace >= _OTHERS else namespace}.{process}"  # not true of every kernel


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def refuse_windows(what: str) -> None:
    """Raise `ConfigurationError` on Windows, for `what` needs POSIX: signals, process groups, locks of files."""
    if WINDOWS:
        raise ConfigurationError(
            f"{what} does not run on Windows: use WSL 2 or a container; a program in one process, `python train.py`, "
            "runs on Windows too"
        )


def memory() -> int:
    """Bytes of memory that this process may use: the machine's, or the limit of its control groups.

    On Windows, where no server runs, 1 TiB.
    """
    if WINDOWS:
        return 1 << 40
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *memory_limits(Path("/"))])


#: Folder and limit file of a hierarchy of groups by its controllers; cgroup v2 has no name.
_LIMITS = {"": ("sys/fs/cgroup", "memory.max"), "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes")}


def memory_limits(root: Path) -> list[int]:
    """The memory limits, in bytes, of this process's control groups and the groups around them, if readable.

    A line of /proc/self/cgroup is `hierarchy:controllers:path` (cgroups(7)). In v1 memory may share its hierarchy with
    other controllers. In a container the path may be the machine's, but the group is mounted as the outermost:
    folders may be missing, and the outermost counts as well. Without a limit v2 has "max", and v1 a number beyond any
    memory. A limit of 0 is ignored. `root` is the folder with `proc` and `sys`; / but for tests.
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
    except OSError:  # not Linux, no such controller, or not readable
        return ""


#: Open files and connections that a server uses at most.
MAX_DESCRIPTORS = 1 << 16


def raise_descriptor_limit() -> None:
    """Allow this process as many open files and connections as it may allow itself, up to `MAX_DESCRIPTORS`.

    The usual limit is 1,024, and each worker is a connection. Not on Windows.
    """
    import resource

    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, MAX_DESCRIPTORS)
    if now != resource.RLIM_INFINITY and now < wanted:
        with suppress(OSError, ValueError):  # macOS allows less than its limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_LARGE, _LARGEST_OF_OLD = 1 << 30, 32 << 20  # the limits of new and of older versions of glibc


def keep_memory() -> bool:
    """Keeps the memory of freed arrays in this process, for the next ones; returns whether that is supported.

    By default each page of a large array costs a page fault each time, a fifth of a training step of Deep MNIST
    (docs/performance.md). In exchange, the process keeps its peak memory. May be called again, at any time.

    Three settings of glibc (mallopt(3)), which only work together: blocks below 1 GiB are not mapped individually, the
    end of the heap is not trimmed, and all threads share one heap (a thread that has its own keeps it): with heaps of
    their own a server took 15 MB more for each worker that sends 13 MB. Other C libraries ignore them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function; TypeError: no such library on Windows
        return False
    mapped_less = mallopt(_M_MMAP_THRESHOLD, _LARGE) or mallopt(_M_MMAP_THRESHOLD, _LARGEST_OF_OLD)
    # Only after the first: alone it makes every large array a mapping, which is slower than the default.
    return bool(mapped_less and mallopt(_M_TRIM_THRESHOLD, _LARGE) and mallopt(_M_ARENA_MAX, 1))
