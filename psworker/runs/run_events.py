"""The file `events.jsonl` in the folder of a run: what happened, a line each. Written by the launcher, and read.

Events come from the shards, by their numbers, from the launcher, whose processes start and end, and from the guard.
"""

import json
import threading
import time as clock
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from psjob.status.new_events import NewEvents
from pswire.system.files import write_file
from psworker.runs.json_lines import JsonLines
from psworker.runs.typed_json import built

if TYPE_CHECKING:  # numpy is not loaded for a list of runs
    from psjob.status.job_status import JobStatus
    from pswire.messages import EventReport

NAME = "events.jsonl"
#: Bytes of a file, above which its older half is left out; and characters of an event's text.
MAX_BYTES, MAX_TEXT = 4 << 20, 1000
#: Levels, the least first.
LEVELS = ("info", "warning", "error")


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run.

    Attributes:
        time: seconds since 1970; `step`: the global step, None if it is not known.
        source: "shard 0", "launcher" or "guard".
        kind: of shards as in `EventReport`; of the launcher "started", "ended", "restarted", "job".
        level: "info", "warning" or "error".
        worker: the worker or server that it is about, "" if it is about none.
    """

    time: float
    step: int | None
    source: str
    kind: str
    level: str
    text: str
    worker: str = ""


class RunEvents:
    """Appends events to the file of a run. Any thread may call; a lock guards the file and the numbers of shards.

    The first error of the file ends it; `problem` is then why, and later events are left out.
    """

    def __init__(self, folder: Path) -> None:
        self.problem = ""
        self._path = folder / NAME
        self._lock = threading.Lock()
        self._step: int | None = None
        self._new = NewEvents()
        with self._lock:
            self._end_line()

    def add(
        self,
        kind: str,
        text: str,
        *,
        source: str = "launcher",
        level: str = "info",
        worker: str = "",
        step: int | None = None,
        time: float | None = None,
    ) -> None:
        """Append an event; by default of now, at the global step that the shards have reported last."""
        with self._lock:
            now = clock.time() if time is None else time
            self._append([RunEvent(now, self._step if step is None else step, source, kind, level, text, worker)])

    def follow(self, status: "JobStatus") -> None:
        """Append the new events in the reports of shards, by the numbers of each shard's events (`StatusDetail`)."""
        with self._lock:
            for report in [answer.report for answer in status.answers if answer.report is not None]:
                self._step = max(self._step or 0, report.global_step) if report.shard else report.global_step
                events = () if report.detail is None else report.detail.events
                self._append([_from_report(report.shard, one) for one in self._new.of(report.shard, events)])

    def _append(self, events: Sequence[RunEvent]) -> None:
        if self.problem or not events:
            return
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write("".join(map(_line, events)).encode())
                size = file.tell()
            if size > MAX_BYTES:
                self._halve()
        except OSError as error:
            self.problem = f"{self._path} ends here: {error.strerror or error}"

    def _halve(self) -> None:
        """Leave out the older half, and say so in the first line."""
        lines = self._path.read_bytes().splitlines(keepends=True)
        kept = lines[len(lines) // 2 :]
        text = f"{len(lines) - len(kept):,} earlier lines were left out: the file has {MAX_BYTES >> 20} MiB at most"
        first = _line(RunEvent(clock.time(), self._step, "launcher", "omitted", "info", text))
        write_file(self._path, first.encode() + b"".join(kept), mode=self._path.stat().st_mode & 0o666)

    def _end_line(self) -> None:
        """End a line that was cut when its writer was killed, so that the next one is whole."""
        try:
            with self._path.open("r+b") as file:
                if file.seek(0, 2) and (file.seek(-1, 2), file.read(1))[1] != b"\n":
                    file.write(b"\n")
        except FileNotFoundError:
            pass
        except OSError as error:
            self.problem = f"{self._path} cannot be written: {error.strerror}"


def _from_report(shard: int, event: "EventReport") -> RunEvent:
    level = "warning" if event.warning else "info"
    return RunEvent(event.time, event.global_step, f"shard {shard}", event.kind, level, event.text, event.worker)


def _line(event: RunEvent) -> str:
    """An event as a line of JSON, its text cut."""
    text = event.text if len(event.text) <= MAX_TEXT else f"{event.text[:MAX_TEXT]}…"
    return json.dumps(asdict(event) | {"text": text}, ensure_ascii=False, allow_nan=False) + "\n"


def read_events(folder: Path) -> tuple[list[RunEvent], str]:
    """The events of a run in the order of time, and what could not be read of them; none if there is no file."""
    path = folder / NAME
    if not path.exists():
        return [], ""
    lines, events = JsonLines(path), []
    for number, data in lines:
        try:
            events.append(built(RunEvent, data))
        except ValueError:
            lines.bad(number)
    return sorted(events, key=lambda one: one.time), lines.problem
