"""Settings of the Python interpreter in the process of a server."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds after which a thread gives up the interpreter's lock when another one waits for it, while threads decode and
#: step large messages. With the default, 5 ms, the event loop would wait for tens of milliseconds meanwhile, several
#: times for each call that it serves. Without such threads it would only make small pushes slower, by 3 %.
SHORT_TURN = 0.5e-3


def set_up_interpreter() -> None:
    """Set up garbage collection, once the modules are imported; affects the whole process."""
    # Calls leave no reference cycles, and garbage collections took 5 % of the time of small pushes. A collection looks
    # at 20,000 young objects at most, in some milliseconds, and rarely at all.
    gc.freeze()
    gc.set_threshold(10_000, 1, 1_000)


class Turns:
    """The time for which threads keep the interpreter's lock: short while they have work. Used in the event loop alone.

    The setting is for the whole process, in which a server is alone.
    """

    def __init__(self) -> None:
        self._usual = sys.getswitchinterval()
        self._count = 0

    @contextmanager
    def short(self) -> Iterator[None]:
        """Let threads have short turns within the block."""
        self._count += 1
        sys.setswitchinterval(min(SHORT_TURN, self._usual))
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                sys.setswitchinterval(self._usual)
