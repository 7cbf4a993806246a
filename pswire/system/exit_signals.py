"""What a signal does to a process that is to end by it, in a container too. Standard library only."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

__all__ = ["end_at_next", "end_at_once", "handle"]

_Handler: TypeAlias = Callable[[int, FrameType | None], object]

_handlers: dict[signal.Signals, _Handler] = {}
_before_fork = threading.local()


def handle(number: signal.Signals, handler: _Handler) -> None:
    """As `signal.signal`, for this process alone: a child that it forks has the default. For the main thread only.

    Otherwise the child would be ended in its parent's way, and with its parent's exit code.
    """
    if not _handlers:
        os.register_at_fork(before=_hold_back, after_in_parent=_let_come, after_in_child=_forget)
    signal.signal(number, handler)
    _handlers[number] = handler


def _hold_back() -> None:
    # what reaches the child before it has the default would be lost: Python forgets signals that came before a fork
    _before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handlers)


def _let_come() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before_fork.mask)


def _forget() -> None:
    for number, handler in _handlers.items():
        if signal.getsignal(number) is handler:
            signal.signal(number, signal.SIG_DFL)
    _let_come()


def end_at_once(number: signal.Signals, code: int) -> None:
    """From now on a signal of this number ends the process at once with `code`. For the main thread only.

    For times when there is nothing to be left in good order. Without a handler the kernel would keep the signal from
    process 1, such as the command of a container, until it is killed (pid_namespaces(7)).
    """
    handle(number, lambda *_: os._exit(code))


def end_at_next(number: signal.Signals) -> None:
    """From now on a signal of this number ends the process at once, without cleaning up. For the main thread only.

    That is what signals do without a handler, except to process 1 (`end_at_once`), whose exit code is then the one
    that shells give.
    """
    if os.getpid() == 1:
        end_at_once(number, 128 + number)
    else:
        signal.signal(number, signal.SIG_DFL)
