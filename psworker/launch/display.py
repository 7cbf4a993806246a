"""What the launcher writes: the workers' lines, each behind its worker's name, and one progress display.

Lines of a worker's stdout go to stdout and those of its stderr to stderr; everything else goes to stderr. A live
display needs a terminal; plain lines need nothing. May import rich and `psworker.launch.progress`.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from psworker.launch.processes import Stream
from psworker.launch.progress import JobView

#: Seconds between two lines of the plain display.
PLAIN_INTERVAL = 2.0

_COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")
_STATE_STYLES = {"starting": "dim", "live": "green", "left": "dim", "lost": "bold red"}


def step_line(view: JobView) -> str:
    """The job in one line: step, rate, epoch, cost, staleness and drops, as far as there are any."""
    if not view.step and (missing := [worker.name for worker in view.workers if worker.state == "starting"]):
        parts = [f"waiting for {' and '.join(missing)} to join"]
    else:
        parts = [f"step {view.step}", f"{_number(view.rate)} steps/s"]
        parts += [f"epoch {view.epoch}"] if view.epoch else []
        parts += [f"cost {view.cost:.4f}"] if view.cost is not None else []
        parts += [f"staleness {view.staleness:.1f}"] if view.staleness is not None else []
        parts += [f"{view.dropped} dropped"] if view.dropped else []
    return " · ".join(parts + ([view.problem] if view.problem else []))


def summary_line(view: JobView) -> str:
    """The whole job in one line, when it is over: steps, seconds, steps per second, mean staleness, workers."""
    seconds = view.training_seconds
    parts = [f"{view.step} steps in {seconds:.1f} s"]
    parts += [f"{_number(view.step / seconds)} steps/s"] if seconds > 0 else []
    parts += [f"staleness {view.staleness:.1f}"] if view.staleness is not None else []
    parts += [f"{view.dropped} dropped"] if view.dropped else []
    return " · ".join([*parts, f"{len(view.workers)} worker{'s' * (len(view.workers) != 1)}"])


def _number(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def table(view: JobView) -> Table:
    """One row a worker. Drops, how tensors travel and who is waited for are columns where there is something to say."""
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    rows.add_column("worker")
    rows.add_column("state")
    for name in ("epoch", "steps", "steps/s", "cost", "staleness"):
        rows.add_column(name, justify="right", min_width=6)
    if drops := view.dropped > 0:
        rows.add_column("dropped", justify="right")
    if lanes := any(worker.tensor_transport for worker in view.workers):
        rows.add_column("tensor_transport")
    if waits := any(worker.waiting_for for worker in view.workers):
        rows.add_column("waiting for")
    for number, worker in enumerate(view.workers):
        rows.add_row(
            Text(worker.name, style=_COLORS[number % len(_COLORS)]),
            Text(worker.state, style=_STATE_STYLES.get(worker.state, "")),
            str(worker.epoch or "–"),
            str(worker.steps),
            _number(worker.rate),
            "–" if worker.cost is None else f"{worker.cost:.4f}",
            "–" if worker.staleness is None else f"{worker.staleness:.1f}",
            *[str(worker.dropped)] * drops,
            *[Text(worker.tensor_transport or "–")] * lanes,
            *[Text(worker.waiting_for or "–")] * waits,
        )
    return rows


class Display:
    """Passes lines on and shows nothing else: `--progress off`. A context manager.

    Any thread may call. `OSError` from a stream that is gone (a pipe that its reader has closed) is the caller's.

    Args:
        names: those whose lines will come; their number decides a name's color.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._width = max(map(len, names))
        self._styles = {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(names)}
        self._lock = threading.RLock()
        self._consoles = {"stdout": Console(), "stderr": Console(stderr=True)}
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # what a worker prints may not exist in the terminal's encoding
                stream.reconfigure(errors="replace")

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leaves the terminal as it was."""

    def lines(self, name: str, stream: Stream, lines: Sequence[str]) -> None:
        """Passes lines on: as they are, or to a terminal with the name in color and without moves of the cursor."""
        console, label = self._consoles[stream], f"{name:<{self._width}} | "
        with self._lock:
            if console.is_terminal:
                prefix = Text(label, style=self._styles.get(name, "dim"))
                text = Text("\n").join(prefix + Text.from_ansi(line) for line in lines)
                console.print(text, highlight=False, soft_wrap=True)
            else:
                console.file.write("".join(f"{label}{line}\n" for line in lines))
                console.file.flush()

    def note(self, text: str) -> None:
        """Says what is being waited for."""

    def show(self, view: JobView) -> None:
        """Shows the job as it is now."""

    def summary(self, view: JobView) -> None:
        """Shows the job as it was, when all is over."""

    def _say(self, text: str) -> None:
        with self._lock:
            self._consoles["stderr"].print(Text(text), highlight=False, soft_wrap=True)


class PlainDisplay(Display):
    """A line of progress every `PLAIN_INTERVAL` seconds."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._next = PLAIN_INTERVAL

    def note(self, text: str) -> None:
        """A line of its own."""
        self._say(text)

    def show(self, view: JobView) -> None:
        """A line such as `[  4.0 s] step 5120 · 1290 steps/s · epoch 5 · cost 0.4661 · staleness 0.9`."""
        if view.seconds >= self._next:
            self._next = view.seconds + PLAIN_INTERVAL
            self._say(f"[{view.seconds:5.1f} s] {step_line(view)}")

    def summary(self, view: JobView) -> None:
        """A line of its own."""
        self._say(summary_line(view))


class LiveDisplay(Display):
    """A line for the job and a table of its workers at the lower end of the terminal; lines scroll above them."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        terminal = self._consoles["stderr"]
        if self._consoles["stdout"].is_terminal:
            self._consoles["stdout"] = terminal  # the same terminal: what is printed must go above the live lines
        self._live = Live(
            console=terminal, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Display:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._live.stop()

    def note(self, text: str) -> None:
        """Takes the place of the table."""
        with self._lock:
            self._live.update(Text(text, style="dim"), refresh=True)

    def show(self, view: JobView) -> None:
        """Draws anew."""
        header = Text.assemble((f"{view.seconds:.1f} s", "bold"), " · ", step_line(view))
        with self._lock:
            self._live.update(Group(header, table(view)), refresh=True)

    def summary(self, view: JobView) -> None:
        """A line that stays when the rest is gone."""
        self._say(summary_line(view))


def make_display(mode: str, names: Sequence[str]) -> Display:
    """The display for `mode`: live, plain, off, or auto: live when stderr is a terminal that can do it, else plain."""
    if mode == "auto":
        able = sys.stderr is not None and sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal
        mode = "live" if able else "plain"
    return {"live": LiveDisplay, "plain": PlainDisplay, "off": Display}[mode](names)
