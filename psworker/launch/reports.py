"""Reports of workers to their launcher, and which lines of their stderr are shown: a traceback only once.

A worker that `psworker local` has started writes its reports to stderr, as lines that begin with `_MARK`:

    error KEY TEXT    an error has ended the script; its traceback follows, up to
    end
    no session        the script has ended without opening a session

The same error of several workers, typically of the script, has the same key, whatever its message. Standard library
only.
"""

import sys
import threading
import traceback
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

#: An ASCII record separator, which no program prints.
_MARK = "\x1epsworker: "
#: Characters of an error's text in one line.
_LONGEST_TEXT = 200


# --- in the worker ----------------------------------------------------------------------------------------------------


def _write(report: str) -> None:
    sys.stderr.write(f"{_MARK}{report}\n")


def error_line(error: BaseException) -> str:
    """An error in one line, such as `ValueError: shapes differ`; the first one, and cut, if it has more."""
    notes = sum(note.count("\n") + 1 for note in getattr(error, "__notes__", ()))  # a line each, after the error's
    lines = traceback.format_exception_only(error)[-1 - notes].strip().splitlines() or [type(error).__name__]
    return shortened(lines[0])


def shortened(text: str) -> str:
    """The text, cut if it is long."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _key(error: BaseException) -> str:
    """The same for errors of the same type at the same place of the same program."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    where = (error.filename, error.lineno) if isinstance(error, SyntaxError) else ()
    return f"{zlib.crc32(repr((type(error).__qualname__, places, where)).encode()):08x}"


@contextmanager
def reported(error: BaseException, text: str) -> Iterator[None]:
    """Report an error, `text` in one line, whose traceback the block writes to stderr."""
    _write(f"error {_key(error)} {text}")
    try:
        yield
    finally:
        _write("end")


def report_no_session() -> None:
    """Report that the script has ended without opening a session."""
    _write("no session")


# --- in the launcher --------------------------------------------------------------------------------------------------


class Reports:
    """Reads the reports of all workers from their stderr, line by line. Any thread may call; a lock guards the tables.

    `errors` has, by worker, the error that ended its present life, as one line; `without_session` are the workers
    whose script opened none.
    """

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self.without_session: set[str] = set()
        self._seen: dict[str, tuple[str, str]] = {}  # by key: the worker whose traceback was shown, and the text
        self._hidden: set[str] = set()  # workers whose traceback is being written, and is not shown
        self._lock = threading.Lock()

    def started(self, worker: str) -> None:
        """Forget the former life of a worker, which is about to be started again."""
        with self._lock:
            self.errors.pop(worker, None)
            self._hidden.discard(worker)

    def strip(self, lines: Iterable[str]) -> tuple[str, ...]:
        """The lines without reports."""
        return tuple([line for line in lines if not line.startswith(_MARK)])

    def read(self, worker: str, lines: Sequence[str]) -> tuple[list[str], list[str]]:
        """The lines without reports; and the lines to be shown, with one for each hidden traceback."""
        written: list[str] = []
        shown: list[str] = []
        with self._lock:
            for line in lines:
                if line.startswith(_MARK):
                    shown += self._report(worker, line.removeprefix(_MARK))
                    continue
                written.append(line)
                if worker not in self._hidden:
                    shown.append(line)
        return written, shown

    def _report(self, worker: str, report: str) -> list[str]:
        """Note a report; returns the line that stands for a hidden traceback."""
        kind, _, rest = report.partition(" ")
        if kind == "no":
            self.without_session.add(worker)
        elif kind == "end":
            self._hidden.discard(worker)
        elif kind == "error":
            key, _, text = rest.partition(" ")
            self.errors[worker] = text
            if key in self._seen:
                self._hidden.add(worker)
                first, shown = self._seen[key]
                whose = "again" if first == worker else f"as {first}"
                return [f"psworker: the same error {whose}{'' if text == shown else f': {text}'}"]
            self._seen[key] = worker, text
        return []
