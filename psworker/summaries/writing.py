"""Files that are written by a thread: what is put in is on disk within `INTERVAL`, and no caller ever waits for a disk.

A file that cannot be written is given up with one warning: summaries do not end training. May import nothing of ours.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path

logger = logging.getLogger(__name__)

#: Seconds between two times of writing: what is lost at most when the process is killed.
INTERVAL = 0.5
#: Seconds that `close` waits for a disk.
CLOSE_TIMEOUT = 10.0
#: Bytes that wait to be written, at most, over all files of a worker: later ones are left out.
MAX_WAITING = 64 << 20


class OutputFile:
    """A file to which a `BackgroundWriter` appends, opened with its first bytes; its folder is made.

    `begin` returns its path and the first bytes of this process, when there is something to write. What an earlier
    process has written stays; an unfinished line of it is ended.
    """

    def __init__(self, begin: Callable[[], tuple[Path, bytes]], *, lines: bool = False) -> None:
        self._begin, self._lines = begin, lines
        self._file: FileIO | None = None
        self._path = Path()
        self._failed = False

    def append(self, data: bytes) -> None:
        """Write bytes; after an error, which is logged, this and all later ones are left out."""
        if self._failed:
            return
        try:
            if self._file is None:
                path, header = self._begin()
                data = self._open(path) + header + data
            assert self._file is not None
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._failed = True
            self.close()
            logger.warning("summaries: %s ends here, and training goes on: %s", self._path, error.strerror or error)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self, path: Path) -> bytes:
        """Open the file; returns what ends an unfinished line in it."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+", buffering=0)
        if not self._lines or not self._file.tell():
            return b""
        self._file.seek(-1, os.SEEK_END)
        return b"" if self._file.read(1) == b"\n" else b"\n"


class BackgroundWriter:
    """A thread that appends to files what is put in, every `INTERVAL` seconds, and at `close`. Any thread may put.

    A fork of the process, which has no such thread, writes nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what is waiting, and is never held while a file is written
        self._waiting: dict[OutputFile, list[bytes]] = {}
        self._nbytes = 0
        self._omitted = False
        self._stop = threading.Event()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="psworker-summaries", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # of a program that does not close its session

    def put(self, file: OutputFile, data: bytes) -> None:
        """Have the thread append the bytes to the file; they are left out if too many are waiting."""
        with self._lock:
            if self._nbytes + len(data) <= MAX_WAITING:
                self._nbytes += len(data)
                self._waiting.setdefault(file, []).append(data)
                return
            first, self._omitted = not self._omitted, True
        if first:
            logger.warning(
                "summaries: some are left out, since %d bytes wait to be written: the disk is slow, or they are many",
                MAX_WAITING,
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
        with self._lock:
            waiting, self._waiting, self._nbytes = self._waiting, {}, 0
        files |= dict.fromkeys(waiting)
        for file, pieces in waiting.items():
            file.append(b"".join(pieces))
