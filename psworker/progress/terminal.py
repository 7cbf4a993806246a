"""A status line on a terminal, while a program goes on printing; and the same text as plain lines.

The line is at the cursor, below all output. The streams of the program that are terminals erase it before they write,
so it never mixes with output; it is shown again with the next status, once the program has ended its line.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TextIO

from psjob.status.job_status import JobStatus
from psjob.status.job_view import JobView
from psjob.status.poller import Poller
from pswire.messages import MinimizationStatus
from psworker import environment
from psworker.progress.text import step_line, summary_line
from psworker.progress.threads_hint import ThreadsHint

#: Seconds between two updates of the line, and between two plain lines.
LINE_INTERVAL, PLAIN_INTERVAL = 0.5, 2.0
_ERASE = "\r\x1b[K"


class ProgressDisplay:
    """Shows the progress of a job on stderr until `close`, then a summary; and a hint on threads of this process.

    `mode` is "auto" or "live": a line if stderr is a terminal; "plain": a line every `PLAIN_INTERVAL` seconds; "off".
    With "auto", a process with its own shard (`embedded`) whose stderr is no terminal gets the hint alone. `ask` is as
    for `Poller`, and called once before anything is trained.
    """

    def __init__(self, mode: str, ask: Callable[[float], JobStatus], *, embedded: bool = False) -> None:
        self._process = os.getpid()
        self._line: StatusLine | None = None
        self._poller: Poller | None = None
        self._shows = False
        self._hint = None if environment.blas_threads_are_set() else ThreadsHint()
        self._training_time = _clock_of_thread()
        self._plain = mode == "plain"
        if self._plain and sys.stderr is not None:
            self._poller = Poller(ask, self._show, interval=PLAIN_INTERVAL)
        elif mode in ("auto", "live") and is_capable(sys.stderr):
            self._line = StatusLine(sys.stderr)
            self._poller = Poller(ask, self._show, interval=LINE_INTERVAL)
        elif mode == "auto" and embedded and self._hint and sys.stderr is not None:
            self._poller = Poller(ask, self._show, interval=PLAIN_INTERVAL)
        if self._poller is not None:
            self._poller.poll()
            self._shows = True
            self._poller.start()

    def close(self, *, failed: bool) -> None:
        """Erase the line; unless the job has `failed`, write a summary. Does nothing in a forked child."""
        if self._poller is None or os.getpid() != self._process:
            return
        self._shows = False
        self._poller.close(failed=failed)
        if self._line is not None:
            self._line.close()
        if not failed and (self._plain if self._line is None else self._line.was_shown):
            _print(summary_line(self._poller.view, None if self._line is None else self._line.width))

    def _show(self, job: JobView) -> None:
        """Show a view, but neither the one before training nor the last."""
        if not self._shows:
            return
        if self._line is not None:
            self._line.show(job)
        elif self._plain:
            _print(f"[{job.seconds:5.1f} s] {step_line(job)}")
        alone = len(job.workers) == 1  # all steps are those of this process
        if self._hint and alone and (hint := self._hint.observe(job.steps, self._training_time(), time.process_time())):
            _print(hint)


def _clock_of_thread() -> Callable[[], float]:
    """The processor time of this thread, for any thread; where the system has none, the time."""
    try:
        clock = time.pthread_getcpuclockid(threading.get_ident())
    except (AttributeError, OSError):
        return time.monotonic

    def read() -> float:
        try:
            return time.clock_gettime(clock)
        except OSError:  # the thread has ended
            return 0.0

    return read


def _print(text: str) -> None:
    with suppress(OSError, ValueError):  # closed: progress must not end the program
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def is_capable(stream: TextIO | None) -> bool:
    """True if a stream is a terminal on which this process can erase a line; never on Windows."""
    try:
        return (
            stream is not None and stream.isatty() and os.name == "posix" and environment.terminal() not in ("", "dumb")
        )
    except ValueError:  # closed
        return False


class StatusLine:
    """One line on a terminal, below what the program writes to stdout and stderr, until `close`.

    Any thread may call. `_lock` guards the state and the order of what is written. A forked child writes as before.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._process = os.getpid()
        self._lock = threading.RLock()  # a signal handler may print within a write
        self._hooks = ExitStack()
        self._visible = False
        self._at_start = True  # of a line: the program has ended its last one
        self._shown: tuple[int, MinimizationStatus | None, str] | None = None
        self._write: Callable[[str], int] = terminal.write
        for stream in {id(one): one for one in (sys.stdout, self._terminal) if is_capable(one)}.values():
            self._hook(stream)

    def close(self) -> None:
        """Erase the line, and leave the streams as they were."""
        with self._lock:
            self._erase()
        self._hooks.close()

    def show(self, job: JobView) -> None:
        """Replace the line, unless the program is within one of its own, or in the background.

        Only if something has advanced: a program may be waiting for input in its debugger.
        """
        now = job.step, job.minimization, job.problem
        with self._lock, suppress(OSError, ValueError):  # closed
            if now != self._shown and self._at_start and self._is_in_foreground():
                self._write(f"{_ERASE}{step_line(job, self.width)}")
                self._terminal.flush()
                self._visible, self._shown = True, now

    @property
    def width(self) -> int:
        """Columns that the line may have: one less than the terminal, whose cursor stays in it."""
        with suppress(OSError, ValueError):
            return (os.get_terminal_size(self._terminal.fileno()).columns or 80) - 1
        return 79

    @property
    def was_shown(self) -> bool:
        """True if a line was shown."""
        return self._shown is not None

    def _is_in_foreground(self) -> bool:
        return os.tcgetpgrp(self._terminal.fileno()) == os.getpgrp()

    def _erase(self) -> None:
        if self._visible:
            self._visible = False
            with suppress(OSError, ValueError):
                self._write(_ERASE)
                self._terminal.flush()

    def _hook(self, stream: TextIO) -> None:
        """Have the line erased before each write to a stream: of the object itself, which loggers have kept."""
        hooked = partial(self._write_above, stream.write)
        stream.write = hooked  # type: ignore[method-assign]

        def unhook() -> None:
            if stream.__dict__.get("write") is hooked:  # it was not replaced
                del stream.__dict__["write"]

        self._hooks.callback(unhook)

    def _write_above(self, original: Callable[[str], int], text: str) -> int:
        if os.getpid() != self._process:
            return original(text)
        with self._lock:
            self._erase()
            if text:
                self._at_start = text.endswith("\n")
            return original(text)
