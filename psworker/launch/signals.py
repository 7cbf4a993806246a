"""Signals delivered as calls in a thread, none lost and none late. Standard library only.

A Python handler runs when the main thread executes Python code. A main thread that waits for a lock is interrupted by a
signal, but one that arrives just before the wait interrupts nothing, and its handler would run only after the wait. The
byte that C code writes to the wakeup pipe arrives at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def signals_in_thread(numbers: Iterable[signal.Signals], arrived: Callable[[int], object]) -> Iterator[None]:
    """Within it each of these signals calls `arrived(number)` in a thread, and does nothing else.

    For the main thread only. An ignored SIGHUP stays ignored, for nohup.
    """
    handled = {n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def read() -> None:
        while arrivals := os.read(reader, 64):
            for number in arrivals:
                if number in handled:
                    arrived(number)

    thread = threading.Thread(target=read, name="signals", daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in handled}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(writer)
        thread.join()
        os.close(reader)
