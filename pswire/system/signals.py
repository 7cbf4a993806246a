"""Signals in the main thread: exit, and exceptions deferred while it is inside a call to a server.

An exception that a signal handler raises inside gRPC may leave one of gRPC's locks held for ever, and leaving the job
would then wait for that lock. So code that calls a server is a block `with deferred_signals:`; within it the exception
is stored, and raised at the end of the outermost block. A long call is cut short. `psworker run` sets such handlers; in
other programs and notebooks the first block replaces Python's own handler of Ctrl-C. Standard library only.
"""

import _signal  # type: ignore[import-not-found]  # a part of CPython that has no types
import os
import signal
import threading
import time
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


#: Seconds a call may continue after a signal. Most calls take milliseconds, so their push completes.
GRACE = 0.5


_SIGINT, _RAISES_AT_ONCE = int(signal.SIGINT), signal.default_int_handler
_handler_of: Callable[[int], object] = _signal.getsignal  # signal.getsignal looks for an enum, which takes 2 us


class _Depth(threading.local):
    """Number of blocks that the current thread is in; signal handlers run in the main thread and read its number."""

    blocks = 0


_depth = _Depth()
_deferred: BaseException | None = None
_alarm: int | None = None
_cancels: set[Callable[[], None]] = set()


class _Block:
    """Defers signals within; reentrant, for any thread, and without effect in all but the main thread."""

    __slots__ = ("_raises",)

    def __init__(self, *, raises: bool) -> None:
        self._raises = raises

    def __enter__(self) -> None:
        if not _depth.blocks and _handler_of(_SIGINT) is _RAISES_AT_ONCE:
            _defer_interrupts()
        _depth.blocks += 1

    def __exit__(self, *_: object) -> None:
        _depth.blocks -= 1
        if _deferred is not None and self._raises and not _depth.blocks:
            raise_deferred()


#: The end of the outermost block raises the deferred exception instead of an error that the block ends with.
deferred_signals = _Block(raises=True)

#: For sending: the block that reads the answers raises the deferred exception, so that no push is left unanswered.
deferred_to_next_block = _Block(raises=False)


def raise_or_defer(error: BaseException) -> None:
    """Raise `error` outside of blocks, else keep it; for signal handlers. Only the first one is stored."""
    global _deferred
    if not _depth.blocks:
        raise error
    if _deferred is None:
        _deferred = error
        if _alarm is not None:
            os.write(_alarm, b"!")


def _defer_interrupts() -> None:
    """Sets a handler of Ctrl-C that raises `KeyboardInterrupt` at once outside of blocks only, in the main thread."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: raise_or_defer(KeyboardInterrupt()))


def raise_deferred() -> None:
    """Raise the deferred exception, once, if this is the main thread; also for safe places within a block."""
    global _deferred
    if _deferred is not None and threading.current_thread() is threading.main_thread():
        error, _deferred = _deferred, None
        raise error


def cut_short() -> bool:
    """True if an exception is deferred, for which calls of this thread end early."""
    return _deferred is not None and threading.current_thread() is threading.main_thread()


def add_cancel(cancel: Callable[[], None]) -> None:
    """Have `cancel`, which ends all waits of a transport, called in a thread `GRACE` seconds after a deferral."""
    global _alarm
    _cancels.add(cancel)
    if _alarm is None:  # here, because a signal handler cannot start a thread
        reader, _alarm = os.pipe()
        threading.Thread(target=_watch, args=(reader,), name="psworker-interrupts", daemon=True).start()


def remove_cancel(cancel: Callable[[], None]) -> None:
    """Undo `add_cancel`."""
    _cancels.discard(cancel)


def _watch(reader: int) -> None:
    while os.read(reader, 1):
        time.sleep(GRACE)
        if _deferred is not None:  # later calls, after it was raised, are not cut short
            for cancel in list(_cancels):
                cancel()
