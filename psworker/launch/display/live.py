"""The output of the launcher on a terminal: the processes' lines scroll above a picture of the job (`dashboard`)."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from psjob.status.job_view import JobView
from psjob.terminal.logs import shortened
from psworker.launch.display.dashboard import MOST_NOTES, Note, dashboard
from psworker.launch.display.plain import Display
from psworker.launch.processes import Stream

#: Seconds between two pictures, at least; and the part of a core that they may take together: one of 64 workers on a
#: large terminal takes 30 ms.
FRAME_INTERVAL, FRAME_SHARE = 0.5, 0.01

#: A terminal shows what is written between these at once, or ignores them (synchronized output, DEC mode 2026).
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"


class _Rendered(NamedTuple):
    """A picture whose layout is done: it is written again below each line of a process, in a tenth of the time."""

    lines: list[list[Segment]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            yield from line
            yield Segment.line()


class LiveDisplay(Display):
    """The picture at the lower end of the terminal, above which lines scroll; only the summary stays.

    `title` is the name of the program.
    """

    def __init__(self, names: Sequence[str], title: str = "") -> None:
        super().__init__(names)
        terminal = self._consoles["stderr"]
        if self._consoles["stdout"].is_terminal:
            self._consoles["stdout"] = terminal  # the same terminal: output must go above the live lines
        self._title, self._due = title, 0.0
        self._findings: deque[Note] = deque(maxlen=MOST_NOTES)
        self._unicode = terminal.encoding.lower().startswith("utf")
        self._live = Live(
            console=terminal, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        self.enter_context(self._live)
        return super().__enter__()

    def lines(self, name: str, stream: Stream, lines: Sequence[str]) -> None:
        """Print lines above the picture; log lines in a short form."""
        with self._at_once():
            super().lines(name, stream, [shortened(line) if stream == "stderr" else line for line in lines])

    def note(self, text: str) -> None:
        """Replace the picture."""
        self._replace(Text(text, style="minor"))

    def show(self, job: JobView) -> None:
        """Replace the picture, unless it is too early (`FRAME_INTERVAL`, `FRAME_SHARE`)."""
        if job.seconds < self._due:
            return
        began = time.thread_time()
        console = self._live.console
        width, height = console.size
        picture = dashboard(job, width, height - 1, self._findings, title=self._title, unicode=self._unicode)
        self._replace(_Rendered(console.render_lines(picture, pad=False)))
        self._due = job.seconds + max(FRAME_INTERVAL, (time.thread_time() - began) / FRAME_SHARE)

    def finding(self, finding: Note) -> None:
        """A new finding of the guard: a line above the picture, and the newest ones in it."""
        with self._at_once():
            self._findings.append(finding)
            self._consoles["stderr"].print(Text(finding.text, "warning"), highlight=False, soft_wrap=True)

    def _replace(self, picture: RenderableType) -> None:
        with self._at_once():
            self._live.update(picture, refresh=True)

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        with self._lock:
            file = self._consoles["stderr"].file
            file.write(_BEGIN)
            try:
                yield
            finally:
                file.write(_END)
                file.flush()
