"""Runs a training program in this process as `python SCRIPT ARGS` would, and turns its end into an exit code.

Errors of the paramserver family become one line. Standard library and errors only.
"""

from __future__ import annotations

import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType

from pswire.errors import ParamServerError


def run_script(script: str, arguments: Sequence[str], *, debug: bool = False) -> int | str | None:
    """Runs it as `__main__` and gives what `sys.exit` takes.

    A `SystemExit` of the script passes through. SIGTERM raises one in it, with 143, so that `with` blocks are left
    in good order; a second SIGTERM ends the process at once. Must be called in the main thread.
    """
    sys.argv[:] = [script, *arguments]
    directory = str(Path(script).resolve().parent)
    if sys.flags.safe_path:  # python -P: there is no folder of the main program at the front
        sys.path.insert(0, directory)
    else:
        sys.path[0] = directory
    signal.signal(signal.SIGTERM, _terminate)
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


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


def _show(error: Exception) -> None:
    """Shows the traceback as Python would, from the script's first frame on."""
    at: TracebackType | None = error.__traceback__
    while at is not None and at.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        at = at.tb_next
    sys.excepthook(type(error), error.with_traceback(at), at)
