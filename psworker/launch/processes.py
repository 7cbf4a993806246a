"""Child processes that are never lost: each with its own process group, its output as lines, and one report of its end.

Knows nothing of servers and workers. Threads block on pipes and on the child; nobody polls. Standard library only.
"""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from psworker.launch import lifeline

Stream = Literal["stdout", "stderr"]

#: What numpy's BLAS libraries ask for the number of their threads, when they are loaded.
BLAS_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}
_LIFELINE = str(Path(lifeline.__file__).resolve())

#: Lines of a child's output that are kept to explain its end.
LAST_LINES = 20
#: Characters after which a line is passed on before it has ended.
LONGEST_LINE = 1 << 16
#: Seconds that the output of a child that has ended may take to arrive. Only a pipe in the hands of a process that
#: left the child's group can take that long.
DRAIN = 2.0


def blas_threads(threads: int) -> dict[str, str]:
    """The environment that gives numpy this many threads."""
    return dict.fromkeys(BLAS_VARIABLES, str(threads))


class Lines:
    """Cuts the bytes of a pipe into lines of text. Bytes that are no UTF-8 become U+FFFD."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._longest = longest
        self._rest = ""

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that `chunk` completes, without their ends. An empty chunk is the end: gives what is left."""
        *lines, self._rest = (self._rest + self._decode(chunk, final=not chunk)).split("\n")
        while len(self._rest) > self._longest:
            lines.append(self._rest[: self._longest])
            self._rest = self._rest[self._longest :]
        if not chunk and self._rest:
            lines.append(self._rest)
            self._rest = ""
        return [_as_shown(line) for line in lines]


def _as_shown(line: str) -> str:
    """What a terminal shows of a line at last: progress bars write it again and again after a carriage return."""
    return line.rstrip("\r").rpartition("\r")[2]


class Lifeline:
    """The pipe whose writing end only this process has; see `psworker.launch.lifeline`. A context manager."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._writer)
        os.close(self.reader)


class Process:
    """A Python module that runs as a child, `python -m MODULE ARGS`, in a session and process group of its own.

    Args:
        name: what to call it in messages.
        command: the module and its arguments.
        environment: all of the child's environment.
        lifeline: the child ends when it closes.
        on_lines: called in a thread with this process, the stream and the lines that came, at least one.
        on_end: called in a thread with this process, once, when it has ended, no process of its group is left, and
            all of its lines have been handed over.

    Attributes:
        pid: its process id, also that of its group.
        code: None while it runs; then its exit code, or minus the number of the signal that killed it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        lifeline: Lifeline,
        on_lines: Callable[[Process, Stream, list[str]], None],
        on_end: Callable[[Process], None],
    ) -> None:
        self.name = name
        self.code: int | None = None
        self._on_lines, self._on_end = on_lines, on_end
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._reaping = threading.Lock()
        self._popen = subprocess.Popen(
            [sys.executable, "-P", _LIFELINE, str(lifeline.reader), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            pass_fds=(lifeline.reader,),
            start_new_session=True,
            bufsize=0,
        )
        self.pid = self._popen.pid
        self._readers = [self._thread(self._read, "stdout"), self._thread(self._read, "stderr")]
        self._thread(self._wait)

    def kill(self, number: signal.Signals) -> None:
        """Sends a signal to all processes of its group; nothing when it has ended."""
        with self._reaping:
            if self.code is None:
                _kill_group(self.pid, number)

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The end of its output, of both streams."""
        return tuple(self._last)

    @property
    def ending(self) -> str:
        """How it ended, for a sentence that begins with its name."""
        if self.code is not None and self.code < 0:
            return f"was killed by {_SIGNAL_NAMES.get(-self.code, f'signal {-self.code}')}"
        return f"ended with exit code {self.code}"

    @property
    def shell_code(self) -> int:
        """Its exit code as a shell gives it: 128 + the signal's number when a signal killed it."""
        assert self.code is not None, f"{self.name} still runs"
        return 128 - self.code if self.code < 0 else self.code

    def _thread(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name=f"{self.name} {target.__name__}", daemon=True)
        thread.start()
        return thread

    def _read(self, stream: Stream) -> None:
        pipe: IO[bytes] = getattr(self._popen, stream)
        lines = Lines()
        with pipe:
            chunk = b"?"
            while chunk:
                chunk = pipe.read(1 << 16)
                if complete := lines.feed(chunk):
                    self._last.extend(complete)
                    self._on_lines(self, stream, complete)

    def _wait(self) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # a zombie keeps its id: nobody else can get it
        else:  # macOS before Python 3.13
            self._popen.wait()
        with self._reaping:
            _kill_group(self.pid, signal.SIGKILL)
            self.code = self._popen.wait()
        for reader in self._readers:
            reader.join(DRAIN)
        self._on_end(self)


def _kill_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM when only zombies are left
        os.killpg(group, number)
