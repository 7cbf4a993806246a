"""Settings of the C allocator, for workers and servers, which allocate large arrays at every step.

Changes the calling process only. Standard library only.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1  # malloc.h
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE = 1 << 30
_LARGEST_OF_OLD = 32 << 20  # the limit of older versions of glibc


def keep_memory() -> bool:
    """Keeps the memory of freed arrays in this process, for the next ones; returns whether that is supported.

    By default an array of some megabytes is mapped and unmapped each time, and each of its pages costs a page fault: a
    fifth of a training step of Deep MNIST (docs/performance.md). In exchange, the process keeps its peak memory.

    Three settings of glibc (mallopt(3)), which only work together: blocks below 1 GiB are not mapped individually, the
    end of the heap is not trimmed, and all threads share one heap: with heaps of their own a server took 15 MB more for
    each worker that sends 13 MB. Other C libraries have no such function or ignore it. May be called again, at any
    time; a thread that has a heap already keeps it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function; TypeError: no such library on Windows
        return False
    mapped_less = mallopt(_M_MMAP_THRESHOLD, _LARGE) or mallopt(_M_MMAP_THRESHOLD, _LARGEST_OF_OLD)
    # Only after the first: alone it makes every large array a mapping, which is slower than the default.
    return bool(mapped_less and mallopt(_M_TRIM_THRESHOLD, _LARGE) and mallopt(_M_ARENA_MAX, 1))
