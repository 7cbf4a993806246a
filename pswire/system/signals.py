"""Signals in the main thread: handlers that end the process, and that forked children do not inherit.

Ctrl-C within a call to a server is in `pswire.system.interrupts`. Standard library only.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

_Handler: TypeAlias = Callable[[int, FrameType | None], object]

_handlers: dict[signal.Signals, _Handler] = {}
_before_fork = threading.local()


def handle(number: signal.Signals, handler: _Handler) -> None:
    """As `signal.signal`, for this process alone: a forked child has the default. For the main thread only.

    Otherwise the child would end like its parent, and with its parent's exit code.
    """
    if not _handlers and hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
        os.register_at_fork(before=_mask_signals, after_in_parent=_unmask_signals, after_in_child=_restore_defaults)
    signal.signal(number, handler)
    _handlers[number] = handler


def _mask_signals() -> None:
    # a signal that reaches the child before it has the default would be lost: Python drops those from before a fork
    _before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handlers)


def _unmask_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before_fork.mask)


def _restore_defaults() -> None:
    for number, handler in _handlers.items():
        if signal.getsignal(number) is handler:
            signal.signal(number, signal.SIG_DFL)
    _unmask_signals()


def end_at_once(number: signal.Signals, code: int) -> None:
    """End the process at once with `code` at a signal of this number. For the main thread only.

    Use it while there is nothing to clean up. Without a handler the kernel does not deliver the signal to process 1,
    such as the command of a container (pid_namespaces(7)).
    """
    handle(number, lambda *_: os._exit(code))


def end_at_interrupt() -> None:
    """End the process at once with 130 at Ctrl-C, until `raise_at_interrupt`; not where SIGINT is ignored, as by nohup.

    For a command that is still being imported: `KeyboardInterrupt` would end it with a traceback.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        end_at_once(signal.SIGINT, 128 + signal.SIGINT)


def raise_at_interrupt() -> None:
    """Raise `KeyboardInterrupt` at Ctrl-C from now on, if `end_at_interrupt` was called before."""
    if signal.getsignal(signal.SIGINT) is _handlers.get(signal.SIGINT):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_at_next(number: signal.Signals) -> None:
    """End the process without cleaning up at the next signal of this number. For the main thread only.

    That is the default, except for process 1 (`end_at_once`), whose exit code is then as in shells.
    """
    if os.getpid() == 1:
        end_at_once(number, 128 + number)
    else:
        signal.signal(number, signal.SIG_DFL)
