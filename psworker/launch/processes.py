"""Child processes: each in its own process group, with output by lines and one report of its end; none left behind.

Threads block on pipes and on the child; there is no polling. A child ends with its parent, however the parent ends,
`kill -9` included: it begins with this file as a script, `python -P processes.py FD MODULE [ARGS...]`, so that the
process of a server loads nothing else of psworker. Standard library only.
"""

import atexit
import codecs
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Literal, TypeAlias

Stream = Literal["stdout", "stderr"]

#: The signals by which a system, a scheduler or a person ends a process.
_KILLING = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))

_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}

#: Lines of a child's output that are kept to explain its end.
LAST_LINES = 20
#: Characters after which an unfinished line is passed on.
LONGEST_LINE = 1 << 16
#: Seconds between SIGTERM and SIGKILL in a child whose parent is gone.
GRACE = 5.0
#: Seconds that the output of an ended child may take to arrive. Only a process that left the child's group and holds
#: its pipe can take that long.
DRAIN_TIMEOUT = 2.0


def read_lines(pipe: IO[bytes]) -> Iterator[list[str]]:
    """The lines of a pipe until its end, in batches as they arrive; invalid UTF-8 becomes U+FFFD.

    Of a line only the text after its last carriage return is kept, as a terminal shows progress bars.
    """
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    rest, chunk = "", b"?"
    while chunk:
        chunk = pipe.read(1 << 16)
        *lines, rest = (rest + decode(chunk, final=not chunk)).split("\n")
        if len(rest) > LONGEST_LINE or (rest and not chunk):
            lines.append(rest)
            rest = ""
        if lines:
            yield [line.rstrip("\r").rpartition("\r")[2] for line in lines]


class ParentPipe(ExitStack):
    """A pipe whose writing end only this process holds, unused. A context manager.

    When that end closes, because the process closed it or is dead, each child stops its whole process group. This needs
    no signal, file or polling, and has no race: a pipe that was closed before the child reads it is still closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reader, self._writer = os.pipe()
        self.callback(os.close, self.reader)
        self.callback(os.close, self._writer)  # first


OnLines: TypeAlias = Callable[["Process", Stream, list[str]], None]


class Process:
    """A Python module in a child, `python -m MODULE ARGS`, in a session and process group of its own.

    `command` is the module and its arguments, `environment` all of the child's; the child ends when the pipe `parent`
    closes, and keeps the file descriptors `held` open. `on_lines` is called in a thread with this process, the stream
    and new lines; `on_end` once, with this process, when it and its group have ended and all lines were passed on.

    `code` is None while it runs; then its exit code, or minus the number of the signal that killed it. `last_lines` are
    the end of its output, of both streams. It is never `pending` (`psworker.launch.machines.JobProcess`).
    """

    pending = False

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        parent: ParentPipe,
        on_lines: OnLines,
        on_end: Callable[["Process"], None],
        held: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.code: int | None = None
        self._on_lines, self._on_end = on_lines, on_end
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._reaping = threading.Lock()
        self._popen = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), str(parent.reader), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            pass_fds=(parent.reader, *held),
            start_new_session=True,
            bufsize=0,
        )
        self._readers = [self._thread(self._read, "stdout"), self._thread(self._read, "stderr")]
        self._thread(self._wait)

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to all processes of its group, unless it has ended."""
        with self._reaping:
            if self.code is None:
                _kill_group(self._popen.pid, number)

    def describe_exit(self) -> str:
        """The way it ended, as the end of a sentence that begins with its name."""
        return describe_code(self.code)

    def _thread(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name=f"{self.name} {target.__name__}", daemon=True)
        thread.start()
        return thread

    def _read(self, stream: Stream) -> None:
        with getattr(self._popen, stream) as pipe:
            for lines in read_lines(pipe):
                self.last_lines.extend(lines)
                self._on_lines(self, stream, lines)

    def _wait(self) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)  # a zombie's id is not reused
        else:  # macOS before Python 3.13
            self._popen.wait()
        with self._reaping:
            _kill_group(self._popen.pid, signal.SIGKILL)
            self.code = self._popen.wait()
        for reader in self._readers:
            reader.join(DRAIN_TIMEOUT)
        self._on_end(self)


def describe_code(code: int | None) -> str:
    """The end of a process with this code, as the end of a sentence that begins with its name."""
    if code is not None and code < 0:
        return f"was killed by {_SIGNAL_NAMES.get(-code, f'signal {-code}')}"
    return f"ended with exit code {code}"


def was_killed(code: int | None) -> bool:
    """True for the code of a process that another one has ended; of a worker also after it has left in good order.

    Signals that a process sends to itself when it fails, such as SIGSEGV, are none of these.
    """
    return code is not None and (-code in _KILLING or code - 128 in _KILLING)


def _kill_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM when only zombies are left
        os.killpg(group, number)


@contextmanager
def signals_handled(numbers: Iterable[signal.Signals], handle: Callable[[int], object]) -> Iterator[None]:
    """Within the block each of these signals calls `handle(number)` in the main thread and has no other effect.

    For the main thread only. An ignored SIGHUP stays ignored, for nohup. A signal just before the main thread waits for
    a lock is handled after the wait, which therefore needs a bound.
    """
    handled = {n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN}
    handlers = {number: signal.signal(number, lambda number, _: handle(number)) for number in handled}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def end_with_parent(fd: int) -> None:
    """Read the pipe in a thread; when it closes the group gets SIGTERM, and `GRACE` seconds later SIGKILL."""
    os.set_inheritable(fd, False)
    closed = threading.Event()

    def watch() -> None:
        while os.read(fd, 1):
            pass
        closed.set()
        os.killpg(0, signal.SIGTERM)
        threading.Event().wait(GRACE)
        os.killpg(0, signal.SIGKILL)

    def kill_group() -> None:
        """At the orderly end of this process, kill children that ignore SIGTERM."""
        if closed.is_set():
            os.killpg(0, signal.SIGKILL)

    atexit.register(kill_group)
    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    fd, module = int(sys.argv[1]), sys.argv[2]
    del sys.argv[1:3]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # until the module sets its own
    end_with_parent(fd)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
