"""Runs a module as a child that ends with its parent, however the parent ends, `kill -9` included.

The parent holds the writing end of a pipe and never writes. When that end closes, because the parent closed it or is
dead, the child stops its whole process group. This needs no signal, file or polling, and has no race: a pipe that was
closed before the child reads it is still closed. The child must lead a process group of its own.

Started by its path, as `python -P parent_watch.py FD MODULE [ARGS...]`, so that a server's process loads nothing of
psworker. Standard library only.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import threading

#: Seconds between SIGTERM and SIGKILL.
GRACE = 5.0


def end_with_parent(fd: int) -> None:
    """Read the pipe in a thread; when it closes the group gets SIGTERM, and `GRACE` seconds later SIGKILL."""
    os.set_inheritable(fd, False)
    closed = threading.Event()

    def watch() -> None:
        while os.read(fd, 1):
            pass
        closed.set()
        os.killpg(0, signal.SIGTERM)
        threading.Event().wait(GRACE)
        os.killpg(0, signal.SIGKILL)

    def kill_group() -> None:
        """At the orderly end of this process, kill children that ignore SIGTERM."""
        if closed.is_set():
            os.killpg(0, signal.SIGKILL)

    atexit.register(kill_group)
    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    fd, module = int(sys.argv[1]), sys.argv[2]
    del sys.argv[1:3]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # until the module sets its own
    end_with_parent(fd)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
