"""Settings of the Python interpreter in the process of a server."""

import gc
import sys

#: Seconds after which a thread gives up the interpreter's lock when another one waits for it. With the default, 5 ms,
#: the event loop would wait for tens of milliseconds while threads decode and step large messages, several times for
#: each call that it serves.
SWITCH_INTERVAL = 0.5e-3


def set_up_interpreter() -> None:
    """Set up garbage collection and threads, once the modules are imported; affects the whole process."""
    # Calls leave no reference cycles, and garbage collections took 5 % of the time of small pushes. A collection looks
    # at 20,000 young objects at most, in some milliseconds, and rarely at all.
    gc.freeze()
    gc.set_threshold(10_000, 1, 1_000)
    sys.setswitchinterval(SWITCH_INTERVAL)
