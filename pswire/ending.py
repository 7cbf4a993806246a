"""The end of a process that does not end by itself, in a container too. Standard library only."""

from __future__ import annotations

import os
import signal

__all__ = ["end_at_next"]


def end_at_next(number: signal.Signals) -> None:
    """From now on a signal of this number ends the process at once, without cleaning up. For the main thread only.

    That is what signals do without a handler, except to process 1, such as the command of a container: the kernel
    keeps from it what it has no handler for (pid_namespaces(7)). Then the exit code is the one that shells give.
    """
    signal.signal(number, signal.SIG_DFL if os.getpid() != 1 else lambda *_: os._exit(128 + number))
