"""Runs a module as a child that does not outlive the launcher, however the launcher ends, `kill -9` included.

The launcher holds the writing end of a pipe and never writes. When that end closes, because the launcher closed it
or is gone, the child stops its whole process group. No signal, file or polling is needed, and there is no race: a pipe
that closed before the child looked is closed still. The child must lead a process group of its own.

Started by its path, as `python -P lifeline.py FD MODULE [ARGS...]`, so that a server's process loads nothing of
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


def hold(fd: int) -> None:
    """Watches the reading end `fd` in a thread; at its end the group gets SIGTERM, and `GRACE` later SIGKILL."""
    os.set_inheritable(fd, False)
    gone = threading.Event()

    def watch() -> None:
        while os.read(fd, 1):
            pass
        gone.set()
        os.killpg(0, signal.SIGTERM)
        threading.Event().wait(GRACE)
        os.killpg(0, signal.SIGKILL)

    def sweep() -> None:
        """This process leaves in good order, and takes along what ignores SIGTERM."""
        if gone.is_set():
            os.killpg(0, signal.SIGKILL)

    atexit.register(sweep)
    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def main() -> None:
    """Takes the lifeline from the command line, then becomes `python -m MODULE ARGS`."""
    fd, module = int(sys.argv[1]), sys.argv[2]
    del sys.argv[1:3]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # until the module has its own
    hold(fd)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
