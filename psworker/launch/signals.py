"""Signals as calls from a thread, none lost and none late.

A handler of Python's runs when the main thread comes back to Python code. A main thread that waits for a lock comes
back when a signal interrupts it, but one that arrives just before the wait interrupts nothing, and its handler would
run only after the wait. What the C level writes to the wakeup pipe is there at once. Standard library only.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def signals(wanted: Iterable[signal.Signals], arrived: Callable[[int], object]) -> Iterator[None]:
    """Within it each of the `wanted` signals calls `arrived(number)` in a thread, and does nothing else.

    For the main thread only. SIGHUP stays ignored if it is, as nohup asks for.
    """
    numbers = {n for n in wanted if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def read() -> None:
        while arrivals := os.read(reader, 64):
            for number in arrivals:
                if number in numbers:
                    arrived(number)

    thread = threading.Thread(target=read, name="signals", daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(writer)
        thread.join()
        os.close(reader)
