"""Ctrl-C, and other exceptions of signal handlers, deferred while the main thread is inside a call to a server.

An exception that a signal handler raises inside gRPC may leave one of gRPC's locks held for ever, or a call that gRPC
counts as open, and closing the channel would then wait for it. So code that calls a server is a block
`with deferred_signals:`, and so is code that closes a channel; within it the exception is stored, and raised at the end
of the outermost block. A long call is cut short. `psworker run` sets such handlers; in other programs, commands and
notebooks the first block replaces Python's own handler of Ctrl-C. Standard library only.
"""

import _signal  # type: ignore[import-not-found]  # a part of CPython that has no types
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

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
_cancels: set[Callable[[], object]] = set()


class _Block:
    """Defers signals within; reentrant, for any thread, and without effect in all but the main thread."""

    __slots__ = ("_raises",)

    def __init__(self, *, raises: bool) -> None:
        self._raises = raises

    def __enter__(self) -> None:
        if not _depth.blocks and _handler_of(_SIGINT) is _RAISES_AT_ONCE:
            defer_interrupts()
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


def defer_interrupts() -> None:
    """Have Ctrl-C raise `KeyboardInterrupt` at once outside of blocks only; without effect in other threads."""
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


def add_cancel(cancel: Callable[[], object]) -> None:
    """Have `cancel`, which ends all waits of a transport, called in a thread `GRACE` seconds after a deferral."""
    global _alarm
    _cancels.add(cancel)
    if _alarm is None:  # here, because a signal handler cannot start a thread
        reader, _alarm = os.pipe()
        threading.Thread(target=_watch, args=(reader,), name="ps-interrupts", daemon=True).start()
    if _deferred is not None:  # perhaps before there was a thread, or it has cancelled what was there
        os.write(_alarm, b"!")


def remove_cancel(cancel: Callable[[], object]) -> None:
    """Undo `add_cancel`."""
    _cancels.discard(cancel)


class Call(Protocol):
    """A call to a server that was sent."""

    def cancel(self) -> object:
        """End it; a wait for its answer then raises an error."""


@contextmanager
def cut_short_by_signals(*calls: Call) -> Iterator[None]:
    """Cancel calls whose answers the main thread waits for in this block, `GRACE` seconds after a deferral.

    Within `deferred_signals`, whose end raises the deferred exception. Without effect in other threads.
    """
    cancels = [call.cancel for call in calls if threading.current_thread() is threading.main_thread()]
    for cancel in cancels:
        add_cancel(cancel)
    try:
        yield
    finally:
        for cancel in cancels:
            remove_cancel(cancel)


def _watch(reader: int) -> None:
    while os.read(reader, 1):
        time.sleep(GRACE)
        if _deferred is not None:  # later calls, after it was raised, are not cut short
            for cancel in list(_cancels):
                cancel()
