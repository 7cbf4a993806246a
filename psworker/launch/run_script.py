"""Runs a training program in this process as `python SCRIPT ARGS` would, and converts its outcome into an exit code.

Shows paramserver errors as one line. SIGTERM and Ctrl-C raise `SystemExit` and `KeyboardInterrupt` in the program.
"""

from __future__ import annotations

import atexit
import runpy
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from pswire.errors import ParamServerError
from pswire.system.signals import end_at_next, end_at_once, handle, raise_deferred, raise_or_defer

#: The exit code after SIGTERM, as in shells.
SIGTERM_CODE = 128 + signal.SIGTERM


def run_script(
    script: str, arguments: Sequence[str], *, debug: bool = False, sigterm_code: int = SIGTERM_CODE
) -> int | str | None:
    """Run it as `__main__`; returns the argument for `sys.exit`, after which the process should end. Main thread only.

    SIGTERM raises a `SystemExit` in it, with `sigterm_code`, so that `with` blocks are left; a second SIGTERM ends the
    process at once. After the script's end SIGTERM ends the process, which may wait for the script's threads, with the
    script's exit code. A script may handle SIGTERM itself.
    """
    sys.argv[:] = [script, *arguments]
    directory = str(Path(script).resolve().parent)
    if sys.flags.safe_path:  # python -P: sys.path does not begin with the script's folder
        sys.path.insert(0, directory)
    else:
        sys.path[0] = directory

    def leave(number: int, frame: FrameType | None) -> None:
        end_at_next(signal.SIGTERM)
        raise_or_defer(SystemExit(sigterm_code))

    handle(signal.SIGTERM, leave)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored, as with nohup
        signal.signal(signal.SIGINT, lambda *_: raise_or_defer(KeyboardInterrupt()))
    # Runs last, after all threads and handlers of the script. Python removes handlers at its end, and in its last 10 to
    # 40 ms SIGTERM would kill the process; an ignored signal stays ignored.
    atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
    outcome = _run(script, debug)
    if signal.getsignal(signal.SIGTERM) is leave:
        with suppress(AttributeError, OSError, ValueError):  # none, broken or closed: Python reports it at its end
            sys.stdout.flush()
        code = outcome & 0xFF if isinstance(outcome, int) else int(outcome is not None)  # as sys.exit makes of it
        end_at_once(signal.SIGTERM, code)
    return outcome


def _run(script: str, debug: bool) -> int | str | None:
    try:
        runpy.run_path(script, run_name="__main__")
        raise_deferred()
    except SystemExit as end:
        return end.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - whatever the script did not catch
        if isinstance(error, ParamServerError) and not debug:
            sys.stderr.write(f"Error: {error}\n")
            return 1
        at = error.__traceback__
        while at is not None and at.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
            at = at.tb_next  # as Python would show it, from the script's first frame on
        sys.excepthook(type(error), error.with_traceback(at), at)
        return 1
    return 0
