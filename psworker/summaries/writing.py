"""Files that are written by a thread: what is put in is on disk within `INTERVAL`, and no caller ever waits for a disk.

A file that cannot be written is given up with one warning: summaries do not end training. May import nothing of ours.
"""

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

#: Seconds between two times of writing: what is lost at most when the process is killed.
INTERVAL = 0.5
#: Seconds that `close` waits for a disk.
CLOSE_TIMEOUT = 10.0
#: Pieces that wait to be written, at most, over all files of a worker: later ones are left out.
MAX_WAITING = 4096


class OutputFile:
    """A file to which a `BackgroundWriter` appends, opened with its first bytes; its folder is made.

    `header` makes the first bytes of this process. Lines of an earlier process stay, also an unfinished one.
    """

    def __init__(self, path: Path, header: Callable[[], bytes], *, lines: bool = False) -> None:
        self.path = path
        self._header, self._lines = header, lines
        self._descriptor: int | None = None
        self._failed = False

    def append(self, data: bytes) -> None:
        """Write bytes; after an error, which is logged, this and all later ones are left out."""
        if self._failed:
            return
        try:
            if self._descriptor is None:
                data = self._open() + data
            assert self._descriptor is not None
            left = memoryview(data)
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            self._failed = True
            self.close()
            logger.warning("summaries: %s ends here, and training goes on: %s", self.path, error.strerror or error)

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> bytes:
        """Open the file; returns what comes before its first bytes."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._descriptor).st_size
        unfinished = self._lines and size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        return b"\n" * unfinished + self._header()


class BackgroundWriter:
    """A thread that appends to files what is put in, every `INTERVAL` seconds, and at `close`. Any thread may put.

    The deque needs no lock: appending and taking are atomic, and one thread takes. A fork of the process, which has no
    such thread, writes nothing.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[OutputFile, Callable[[], bytes]]] = deque()
        self._omitted = False
        self._stop = threading.Event()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="psworker-summaries", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # of a program that does not close its session

    def put(self, file: OutputFile, make: Callable[[], bytes]) -> None:
        """Have the thread append the bytes that `make` returns; left out if too much is waiting."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append((file, make))
        elif not self._omitted:
            self._omitted = True
            logger.warning(
                "summaries: some are left out, since %d wait to be written to %s and other files: its disk is slow, or "
                "the program writes too many",
                MAX_WAITING,
                file.path,
            )

    def close(self) -> None:
        """Write what is waiting, and end the thread; gives up a disk that does not answer in `CLOSE_TIMEOUT`."""
        atexit.unregister(self.close)
        if os.getpid() != self._process:
            return
        self._stop.set()
        self._thread.join(CLOSE_TIMEOUT)
        if self._thread.is_alive():
            logger.warning("summaries: the last ones are lost, since writing takes more than %g s", CLOSE_TIMEOUT)

    def _run(self) -> None:
        files: dict[OutputFile, None] = {}
        while not self._stop.wait(INTERVAL):
            self._write(files)
        self._write(files)
        for file in files:
            file.close()

    def _write(self, files: dict[OutputFile, None]) -> None:
        """Append what is waiting, with one write for each file."""
        made: dict[OutputFile, list[bytes]] = {}
        while self._waiting:
            file, make = self._waiting.popleft()
            made.setdefault(file, []).append(make())
        files |= dict.fromkeys(made)
        for file, pieces in made.items():
            file.append(b"".join(pieces))
