"""The output of the launcher as plain lines: the processes' lines, each after its name, and the progress of the job.

A process's stdout goes to stdout and its stderr to stderr; everything else goes to stderr.
"""

import io
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack

import click
from rich.console import Console
from rich.text import Text

from psjob.status.job_view import JobView
from psworker.launch.display.colors import name_style, themed
from psworker.launch.display.dashboard import Note
from psworker.launch.processes import Stream
from psworker.progress.text import step_line, summary_line

#: Seconds between two lines of progress.
PLAIN_INTERVAL = 2.0


class Display(ExitStack):
    """Prints the processes' lines and, if it shows `progress`, notices and a line every `PLAIN_INTERVAL` seconds.

    A context manager. Any thread may call. The caller handles `OSError` from a stream whose reader has closed it. The
    position of a name, of a worker or server, decides its color. With `quiet` only lines that processes print are
    shown, and problems.
    """

    def __init__(self, names: Sequence[str], *, progress: bool = True, quiet: bool = False) -> None:
        super().__init__()
        self._progress, self._quiet, self._next = progress, quiet, PLAIN_INTERVAL
        self._width = max(map(len, names))
        self._styles = {name: name_style(number) for number, name in enumerate(names)}
        self._lock = threading.RLock()
        self._consoles = {"stdout": themed(Console()), "stderr": themed(Console(stderr=True))}
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # the terminal's encoding may lack a worker's characters
                stream.reconfigure(errors="replace")

    def lines(self, name: str, stream: Stream, lines: Sequence[str]) -> None:
        """Print lines: unchanged, or on a terminal with the name in color and without cursor movements."""
        console, label = self._consoles[stream], f"{name:<{self._width}} | "
        with self._lock:
            if console.is_terminal:
                label_style = self._styles.get(name, "dim")
                text = Text("\n").join(Text.assemble((label, label_style), Text.from_ansi(line)) for line in lines)
                console.print(text, highlight=False, soft_wrap=True)
            else:
                console.file.write("".join(f"{label}{line}\n" for line in lines))
                console.file.flush()

    def process_event(self, name: str, text: str) -> None:
        """A line about a process, such as that it is started again."""
        if not self._quiet:
            self.lines(name, "stderr", [text])

    def notice(self, text: str, *, needed: bool = False) -> None:
        """A line of its own, which stays; one that is not `needed` only with progress, and none with `quiet`."""
        self._print(text, always=needed and not self._quiet)

    def note(self, text: str) -> None:
        """Show why the launcher is waiting."""
        self._print(text)

    def show(self, job: JobView) -> None:
        """A line such as `[  4.0 s] epoch 5 of 10 · step 5,120 · 1,290 steps/s · cost 0.4661 · staleness 0.9`."""
        if job.seconds >= self._next:
            self._next = job.seconds + PLAIN_INTERVAL
            self._print(f"[{job.seconds:5.1f} s] {step_line(job)}")

    def finding(self, finding: Note) -> None:
        """A new finding of the guard: a line that is shown without progress, too."""
        if not self._quiet:
            self._print(finding.text, always=True)

    def summary(self, job: JobView) -> None:
        """A line of its own."""
        console = self._consoles["stderr"]
        self._print(summary_line(job, console.width if console.is_terminal else None))

    def problem(self, level: str, text: str) -> None:
        """A warning or an error of the whole command, always shown; after the display has ended."""
        click.echo(text, err=True)

    def _print(self, text: str, *, always: bool = False) -> None:
        if self._progress or always:
            with self._lock:
                self._consoles["stderr"].print(Text(text), highlight=False, soft_wrap=True)
