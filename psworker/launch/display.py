"""The output of the launcher: the workers' lines, each after its worker's name, and the progress of the job.

A worker's stdout goes to stdout and its stderr to stderr; everything else goes to stderr.
"""

import io
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import fmean
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from psworker.launch.processes import Stream
from psworker.launch.progress import Progress

#: Seconds between two lines of the plain display.
PLAIN_INTERVAL = 2.0

_COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")
_STATE_STYLES = {"starting": "dim", "live": "green", "left": "dim", "lost": "bold red"}


def step_line(job: Progress) -> str:
    """The job in one line: step, rate, epoch, mean cost, staleness and drops, as far as there are any."""
    missing = [worker.status.name for worker in job.workers if worker.status.state == "starting"]
    if missing and not job.step:
        parts = [f"waiting for {' and '.join(missing)} to join"]
    else:
        epoch = max((worker.status.epoch for worker in job.workers), default=0)
        costs = [worker.cost for worker in job.workers if worker.cost is not None]
        parts = [f"step {job.step}", f"{_rate(sum(worker.rate for worker in job.workers))} steps/s"]
        parts += [f"epoch {epoch}"] if epoch else []
        parts += [f"cost {fmean(costs):.4f}"] if costs else []
        parts += _staleness_and_drops(job)
    return " · ".join(parts + ([job.problem] if job.problem else []))


def summary_line(job: Progress) -> str:
    """The whole job in one line, when it is over: steps, seconds, steps per second, mean staleness, workers."""
    seconds = max(0.0, job.advanced - job.began)
    parts = [f"{job.step} steps in {seconds:.1f} s"]
    parts += [f"{_rate(job.step / seconds)} steps/s"] if seconds > 0 else []
    parts += _staleness_and_drops(job)
    return " · ".join([*parts, f"{len(job.workers)} worker{'s' * (len(job.workers) != 1)}"])


def _staleness_and_drops(job: Progress) -> list[str]:
    """The mean staleness of all pushes, and how many were dropped."""
    statuses = [worker.status for worker in job.workers]
    known = [(status.mean_staleness, status.steps) for status in statuses if status.mean_staleness is not None]
    pushes, dropped = sum(steps for _, steps in known), sum(status.dropped for status in statuses)
    parts = [f"staleness {sum(mean * steps for mean, steps in known) / pushes:.1f}"] if pushes else []
    return parts + ([f"{dropped} dropped"] if dropped else [])


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def table(job: Progress) -> Table:
    """One row per worker. Drops, tensor transports and waits have columns only if there are any."""
    statuses = [worker.status for worker in job.workers]
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    rows.add_column("worker")
    rows.add_column("state")
    for name in ("epoch", "steps", "steps/s", "cost", "staleness"):
        rows.add_column(name, justify="right", min_width=6)
    if drops := any(status.dropped for status in statuses):
        rows.add_column("dropped", justify="right")
    if transports := any(status.tensor_transport for status in statuses):
        rows.add_column("transport")
    if waits := any(status.waiting_for for status in statuses):
        rows.add_column("waiting for")
    for number, (worker, status) in enumerate(zip(job.workers, statuses, strict=True)):
        rows.add_row(
            Text(status.name, style=_COLORS[number % len(_COLORS)]),
            Text(status.state, style=_STATE_STYLES.get(status.state, "")),
            str(status.epoch or "–"),
            str(status.steps),
            _rate(worker.rate),
            "–" if worker.cost is None else f"{worker.cost:.4f}",
            "–" if status.mean_staleness is None else f"{status.mean_staleness:.1f}",
            *[str(status.dropped)] * drops,
            *[Text(status.tensor_transport or "–")] * transports,
            *[Text(status.waiting_for or "–")] * waits,
        )
    return rows


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
        """A line such as `[  4.0 s] step 5120 · 1290 steps/s · epoch 5 · cost 0.4661 · staleness 0.9`."""
        if job.seconds >= self._next:
            self._next = job.seconds + PLAIN_INTERVAL
            self._print(f"[{job.seconds:5.1f} s] {step_line(job)}")

    def summary(self, job: Progress) -> None:
        """A line of its own."""
        self._print(summary_line(job))

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
        header = Text.assemble((f"{job.seconds:.1f} s", "bold"), " · ", step_line(job))
        with self._lock:
            self._live.update(Group(header, table(job)), refresh=True)


def make_display(mode: str, names: Sequence[str]) -> Display:
    """The display for `mode`: live, plain, off, or auto: live when stderr is a capable terminal, else plain."""
    if mode == "auto":
        capable = sys.stderr is not None and sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal
        mode = "live" if capable else "plain"
    return LiveDisplay(names) if mode == "live" else Display(names, quiet=mode == "off")
