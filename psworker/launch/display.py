"""The output of the launcher: the workers' lines, each after its worker's name, and the progress of the job.

A worker's stdout goes to stdout and its stderr to stderr; everything else goes to stderr.
"""

import io
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pswire.fitted_table import Column, FittedTable
from psworker.launch.processes import Stream
from psworker.progress.progress import Progress
from psworker.progress.text import rate_text, step_line, summary_line

#: Seconds between two lines of the plain display.
PLAIN_INTERVAL = 2.0

#: The width of a column of numbers, so that they do not move while they grow.
_NUMBER_WIDTH = 6
_COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")
_STATE_STYLES = {"starting": "dim", "live": "green", "left": "dim", "lost": "bold red"}


def table(job: Progress) -> FittedTable:
    """One row per worker. Drops, tensor transports and waits have columns only if there are any."""
    statuses = [worker.status for worker in job.workers]
    columns = [
        Column("worker", lambda one: one.status.name, shortest=12, cut=True),
        Column("state", lambda one: one.status.state, 1),
        Column("epoch", lambda one: f"{one.status.epoch or '–'}", 5, number=True, least=_NUMBER_WIDTH),
        Column("steps", lambda one: f"{one.status.steps:,}", number=True, least=_NUMBER_WIDTH),
        Column("steps/s", lambda one: rate_text(one.rate), 6, number=True),
        Column("cost", lambda one: _number(one.cost, ".4f"), 3, number=True, least=_NUMBER_WIDTH),
        Column("staleness", lambda one: _number(one.status.mean_staleness, ".1f"), 7, number=True),
    ]
    if any(status.dropped for status in statuses):
        columns.append(Column("dropped", lambda one: f"{one.status.dropped:,}", 4, number=True))
    if any(status.tensor_transport for status in statuses):
        columns.append(Column("transport", lambda one: one.status.tensor_transport or "–", 8))
    if any(status.waiting_for for status in statuses):
        columns.append(Column("waiting for", lambda one: one.status.waiting_for or "–", 2, shortest=24, cut=True))
    return FittedTable(columns, job.workers, style=_style)


def _style(column: Column, text: str, row: int) -> str:
    return {"worker": _COLORS[row % len(_COLORS)], "state": _STATE_STYLES.get(text, "")}.get(column.header, "")


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


class Display(ExitStack):
    """Prints the workers' lines and, unless `quiet`, a line of progress every `PLAIN_INTERVAL` seconds.

    A context manager. Any thread may call. The caller handles `OSError` from a stream whose reader has closed it. The
    position of a name, of a worker or server, decides its color.
    """

    def __init__(self, names: Sequence[str], *, quiet: bool = False) -> None:
        super().__init__()
        self._quiet, self._next = quiet, PLAIN_INTERVAL
        self._width = max(map(len, names))
        self._styles = {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(names)}
        self._lock = threading.RLock()
        self._consoles = {"stdout": Console(), "stderr": Console(stderr=True)}
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # the terminal's encoding may lack a worker's characters
                stream.reconfigure(errors="replace")

    def lines(self, name: str, stream: Stream, lines: Sequence[str]) -> None:
        """Print lines: unchanged, or on a terminal with the name in color and without cursor movements."""
        console, label = self._consoles[stream], f"{name:<{self._width}} | "
        with self._lock:
            if console.is_terminal:
                prefix = Text(label, style=self._styles.get(name, "dim"))
                text = Text("\n").join(prefix + Text.from_ansi(line) for line in lines)
                console.print(text, highlight=False, soft_wrap=True)
            else:
                console.file.write("".join(f"{label}{line}\n" for line in lines))
                console.file.flush()

    def notice(self, text: str) -> None:
        """A line of its own, which stays; nothing with `quiet`."""
        self._print(text)

    def note(self, text: str) -> None:
        """Show why the launcher is waiting."""
        self._print(text)

    def show(self, job: Progress) -> None:
        """A line such as `[  4.0 s] epoch 5 of 10 · step 5,120 · 1,290 steps/s · cost 0.4661 · staleness 0.9`."""
        if job.seconds >= self._next:
            self._next = job.seconds + PLAIN_INTERVAL
            self._print(f"[{job.seconds:5.1f} s] {step_line(job)}")

    def summary(self, job: Progress) -> None:
        """A line of its own."""
        console = self._consoles["stderr"]
        self._print(summary_line(job, console.width if console.is_terminal else None))

    def _print(self, text: str) -> None:
        if not self._quiet:
            with self._lock:
                self._consoles["stderr"].print(Text(text), highlight=False, soft_wrap=True)


class LiveDisplay(Display):
    """A line and a table at the lower end of the terminal, above which lines scroll; only the summary stays."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        terminal = self._consoles["stderr"]
        if self._consoles["stdout"].is_terminal:
            self._consoles["stdout"] = terminal  # the same terminal: output must go above the live lines
        self._live = Live(
            console=terminal, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        self.enter_context(self._live)
        return super().__enter__()

    def note(self, text: str) -> None:
        """Replace the table."""
        with self._lock:
            self._live.update(Text(text, style="dim"), refresh=True)

    def show(self, job: Progress) -> None:
        """Replace line and table."""
        seconds, width = f"{job.seconds:.1f} s", self._live.console.width
        header = Text.assemble((seconds, "bold"), " · ", step_line(job, width - len(f"{seconds} · ")))
        with self._lock:
            self._live.update(Group(header, table(job)), refresh=True)


def make_display(mode: str, names: Sequence[str]) -> Display:
    """The display for `mode`: live, plain, off, or auto: live when stderr is a capable terminal, else plain."""
    if mode == "auto":
        capable = sys.stderr is not None and sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal
        mode = "live" if capable else "plain"
    return LiveDisplay(names) if mode == "live" else Display(names, quiet=mode == "off")
