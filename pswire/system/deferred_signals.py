"""Signals that end a program, raised in its main thread where it can bear that.

A handler runs between any two instructions. What it raises inside of gRPC may leave a lock of gRPC's held for ever, and
the way out, which calls the servers once more, would wait for it. So while a call is under way the exception is kept,
and raised when the call is over; one that takes long is cut short. Standard library only.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import FrameType

#: What calls the servers: as long as one of these is on the stack, nothing is raised.
_CALLING = ("psworker.client.retrying_calls", "psworker.transport")

#: Seconds that a call gets to end by itself. Most take milliseconds, and what they push is whole then.
GRACE = 0.5

_kept: BaseException | None = None
_alarm: int | None = None
_cuts: set[Callable[[], None]] = set()


def cut_short_by(cut: Callable[[], None]) -> None:
    """From now on `cut`, which ends all waits of a transport, is called in a thread when a call is to be cut short."""
    global _alarm
    _cuts.add(cut)
    if _alarm is None:  # now, for a handler cannot start a thread
        reader, _alarm = os.pipe()
        threading.Thread(target=_watch, args=(reader,), name="psworker-interrupts", daemon=True).start()


def forget(cut: Callable[[], None]) -> None:
    """The transport is closed."""
    _cuts.discard(cut)


def interrupt(error: BaseException, frame: FrameType | None) -> None:
    """Raises `error`, or keeps it for `check` if `frame`, that of the main thread, is within a call to a server.

    For handlers of signals. The first one that is kept counts.
    """
    global _kept
    if not _within_a_call(frame):
        raise error
    if _kept is None:
        _kept = error
        if _alarm is not None:
            os.write(_alarm, b"!")


def check() -> None:
    """Raises what was kept, once, in the main thread: a call is over."""
    global _kept
    if _kept is not None and threading.current_thread() is threading.main_thread():
        error, _kept = _kept, None
        raise error


def _within_a_call(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_CALLING):
            return True
        frame = frame.f_back
    return False


def _watch(reader: int) -> None:
    while os.read(reader, 1):
        time.sleep(GRACE)
        if _kept is not None:  # not raised meanwhile, after which there are calls that are not to be cut short
            for cut in list(_cuts):
                cut()
