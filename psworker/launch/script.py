"""A training program, run in this process as `python SCRIPT` would: its signals, its exit code and its errors.

Must not import numpy (`psworker.launch.cli`).
"""

import atexit
import runpy
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import FrameType

from pswire.errors import ParamServerError
from pswire.system.interrupts import defer_interrupts, raise_deferred, raise_or_defer
from pswire.system.signals import end_at_next, end_at_once, handle
from psworker.launch.reports import error_line, report_no_session, reported, shortened

#: The exit code after SIGTERM, as in shells.
SIGTERM_CODE = 128 + signal.SIGTERM
#: That of a worker that has waited for --timeout in vain: for a server to answer, or for a server that waits for other
#: workers. It is EX_UNAVAILABLE of sysexits.h.
UNAVAILABLE_CODE = 69


def run_script(
    script: str,
    arguments: Sequence[str],
    *,
    debug: bool = False,
    sigterm_code: int = SIGTERM_CODE,
    launched: bool = False,
) -> int | str | None:
    """Run a program as `python SCRIPT ARGS` would; returns the argument for `sys.exit`. Main thread only.

    Exit the process afterwards. Ctrl-C raises `KeyboardInterrupt` in the program, and SIGTERM a `SystemExit` with
    `sigterm_code`, so that `with` blocks are left; a second SIGTERM ends the process at once. After the script's end
    SIGTERM ends the process, which may wait for the script's threads, with the script's exit code. A script may handle
    SIGTERM itself.

    An error of ours is one line, unless `debug`; the code is `UNAVAILABLE_CODE` for one of the network. With
    `launched`, reports for the launcher are written to stderr.
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
        defer_interrupts()
    # Runs last, after all threads and handlers of the script. Python removes handlers at its end, and in its last 10 to
    # 40 ms SIGTERM would kill the process; an ignored signal stays ignored.
    atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
    outcome = _run(script, debug, launched)
    if signal.getsignal(signal.SIGTERM) is leave:
        with suppress(AttributeError, OSError, ValueError):  # none, broken or closed: Python reports it at its end
            sys.stdout.flush()
        code = outcome & 0xFF if isinstance(outcome, int) else int(outcome is not None)  # as sys.exit does
        end_at_once(signal.SIGTERM, code)
    return outcome


def _run(script: str, debug: bool, launched: bool) -> int | str | None:
    try:
        runpy.run_path(script, run_name="__main__")
        raise_deferred()
    except SystemExit as end:
        return end.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - whatever the script did not catch
        ours = isinstance(error, ParamServerError) and not debug
        text = shortened(str(error)) if ours else error_line(error)
        with reported(error, text) if launched else nullcontext():
            if ours:
                sys.stderr.write(f"Error: {error}\n")
            else:
                _show_traceback(error)
        return UNAVAILABLE_CODE if isinstance(error, ParamServerError) and error.retry else 1
    if not _has_opened_a_session():
        if launched:
            report_no_session()
        else:
            sys.stderr.write(f"psworker: {without_session(script)}\n")
    return 0


def _show_traceback(error: BaseException) -> None:
    """Write the traceback as Python would, from the script's first frame on."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        at = at.tb_next
    sys.excepthook(type(error), error.with_traceback(at), at)


def _has_opened_a_session() -> bool:
    sessions = sys.modules.get("psworker.sessions.session")  # not imported: a script may need neither it nor numpy
    return sessions is not None and sessions.opened > 0


def without_session(who: str) -> str:
    """The warning that a script has opened no session."""
    return (
        f"{who} has ended without opening a session, so nothing was trained with the servers: put the training in a "
        "block `with psworker.session():`"
    )
