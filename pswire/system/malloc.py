"""How the C library gives memory back, for processes that allocate large arrays at every step: workers and servers.

Changes the process it is called in and nothing else. Imports the standard library alone.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_memory"]

_M_TRIM_THRESHOLD = -1  # malloc.h
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE = 1 << 30
_LARGEST_OF_OLD = 32 << 20  # older versions of glibc take no more


def keep_memory() -> bool:
    """Lets this process keep the memory of arrays it has freed, for the next ones; whether the C library agreed.

    A fresh array of some megabytes otherwise comes from the operating system and goes back to it when freed, and each
    of its pages costs a page fault when it is first written: a fifth of a training step of Deep MNIST (see
    docs/performance.md). The price: a process does not shrink below what it needed at its peak.

    Three settings of glibc (mallopt(3)), which only work together: blocks below 1 GiB are not mapped one by one, the
    end of the heap is not handed back, and all threads share one heap, for what one frees in a heap of its own no other
    can have: that cost a server 15 MB for each worker that sends 13 MB. Any other C library has no such function or
    ignores it: then it is False, and nothing has changed. May be called again, and at any time; but a thread that has a
    heap already keeps it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function; TypeError: no such library on Windows
        return False
    mapped_less = mallopt(_M_MMAP_THRESHOLD, _LARGE) or mallopt(_M_MMAP_THRESHOLD, _LARGEST_OF_OLD)
    # Second, and only then: by itself this makes every large array a mapping of its own, which is slower than before.
    return bool(mapped_less and mallopt(_M_TRIM_THRESHOLD, _LARGE) and mallopt(_M_ARENA_MAX, 1))
