"""The output of the launcher for programs: every line of stderr is a JSON object, as in `psjob.terminal.logs`."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress

from psjob.status.job_view import JobView
from psjob.terminal.logs import utc
from psworker.launch.display.dashboard import Note
from psworker.launch.display.plain import PLAIN_INTERVAL, Display
from psworker.launch.processes import Stream
from psworker.progress.text import step_line, summary_line

_LOGGER = "psworker.launch"


class JsonDisplay(Display):
    """Writes JSON lines instead of text. What processes print on stdout stays as it is.

    Of their stderr, lines that are JSON objects stay as they are; others, of the program, become objects with the
    logger "stderr".
    """

    def lines(self, name: str, stream: Stream, lines: Sequence[str]) -> None:
        """Print lines."""
        if stream == "stdout":
            super().lines(name, stream, lines)
            return
        self._write([line if _is_object(line) else _line("info", "stderr", line, name) for line in lines])

    def process_event(self, name: str, text: str) -> None:
        """A line about a process."""
        if not self._quiet:
            self._write([_line("warning", _LOGGER, text, name, event="process")])

    def show(self, job: JobView) -> None:
        """A line with the step, every `PLAIN_INTERVAL` seconds."""
        if self._progress and job.seconds >= self._next:
            self._next = job.seconds + PLAIN_INTERVAL
            self._write([_line("info", _LOGGER, step_line(job), event="progress", step=job.step)])

    def finding(self, finding: Note) -> None:
        """A new finding of the guard."""
        if not self._quiet:
            self._write([_line("warning", _LOGGER, finding.text, event="guard")])

    def summary(self, job: JobView) -> None:
        """A line at the end."""
        if self._progress:
            self._write([_line("info", _LOGGER, summary_line(job), event="summary", step=job.step)])

    def problem(self, level: str, text: str) -> None:
        """A warning or an error of the whole command."""
        self._write([_line(level, _LOGGER, text)])

    def _print(self, text: str, *, always: bool = False) -> None:
        if self._progress or always:
            self._write([_line("info", _LOGGER, text)])

    def _write(self, lines: Sequence[str]) -> None:
        with self._lock:
            file = self._consoles["stderr"].file
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()


def _is_object(line: str) -> bool:
    with suppress(ValueError):
        return line.startswith("{") and isinstance(json.loads(line), dict)
    return False


def _line(level: str, logger: str, text: str, name: str = "", **fields: object) -> str:
    """A JSON object; the name of a server gives its shard."""
    kind, _, number = name.rpartition("-")
    who: dict[str, object] = {"shard": int(number)} if kind == "server" else {"worker": name} if name else {}
    return json.dumps({"time": utc(time.time()), "level": level, "logger": logger, **who, **fields, "text": text})
