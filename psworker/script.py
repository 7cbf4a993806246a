"""Runs a training program in this process as `python SCRIPT ARGS` would, and turns its end into an exit code.

Errors of the paramserver family become one line, SIGTERM a `SystemExit` in the program. Standard library, errors and
ending only.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType

from pswire.ending import end_at_next
from pswire.errors import ParamServerError

#: The exit code after SIGTERM, as shells have it.
SIGTERM_CODE = 128 + signal.SIGTERM


def end_at_sigterm(code: int = SIGTERM_CODE) -> None:
    """From now on SIGTERM ends the process at once with `code`; also one that came before, if it was blocked.

    For the time before `run_script`, when there is nothing yet to be left in good order. Without a handler the kernel
    would keep SIGTERM from process 1, such as the command of a container, until it is killed. For the main thread only.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def run_script(
    script: str, arguments: Sequence[str], *, debug: bool = False, sigterm_code: int = SIGTERM_CODE
) -> int | str | None:
    """Runs it as `__main__` and gives what `sys.exit` takes.

    A `SystemExit` of the script passes through. SIGTERM raises one in it, with `sigterm_code`, so that `with` blocks
    are left in good order; a second SIGTERM ends the process at once. A script that handles SIGTERM itself has its own
    way. Must be called in the main thread.
    """
    sys.argv[:] = [script, *arguments]
    directory = str(Path(script).resolve().parent)
    if sys.flags.safe_path:  # python -P: there is no folder of the main program at the front
        sys.path.insert(0, directory)
    else:
        sys.path[0] = directory

    def leave(number: int, frame: FrameType | None) -> None:
        end_at_next(signal.SIGTERM)
        sys.exit(sigterm_code)

    signal.signal(signal.SIGTERM, leave)
    try:
        runpy.run_path(script, run_name="__main__")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except ParamServerError as error:
        if debug:
            _show(error)
        else:
            sys.stderr.write(f"Error: {error}\n")
        return 1
    except Exception as error:  # noqa: BLE001 - whatever the script did not catch
        _show(error)
        return 1
    return 0


def _show(error: Exception) -> None:
    """Shows the traceback as Python would, from the script's first frame on."""
    at: TracebackType | None = error.__traceback__
    while at is not None and at.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        at = at.tb_next
    sys.excepthook(type(error), error.with_traceback(at), at)
