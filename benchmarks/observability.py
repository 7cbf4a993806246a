"""The cost of seeing: steps per second of a small model with everything that shows a run, in turns with nothing of it.

    python benchmarks/observability.py                  # everything against nothing: three minutes
    python benchmarks/observability.py page guard ...   # these parts against nothing; all: each of them

Softmax regression on MNIST, batch 100, one shard and two workers with one BLAS thread, as `psworker local` runs it: a
step takes about a millisecond, and all cores are busy, so what is added is seen as nowhere else. Everything is: the
live page with a viewer, a run folder with scalars, TensorBoard files and events,
the guard, lines of progress, and a log in JSON. Load of the machine disturbs single runs by some percent: the figure
is the median of the ratios of two runs, one after the other, in either order in turns.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import _report
from small_model import WINDOWS, WORKER

WORKERS, PAIRS = 2, 8


class Part(NamedTuple):
    """Options of `psworker local`; `{run}` is the folder of the run. `page` has a viewer."""

    options: tuple[str, ...] = ()
    page: bool = False


_RUN = ("--run-dir", "{run}", "--checkpoint-every", "1h")
_LOG = ("--log-format", "json", "--log-level", "info")
_OFF = ("--progress", "off", "--guard", "off")

NOTHING = Part(_OFF)
PARTS = {
    "page": Part(_OFF, page=True),
    "run-folder": Part((*_OFF, *_RUN)),
    "guard": Part(("--progress", "off")),
    "progress": Part(("--progress", "plain", "--guard", "off")),
    "log": Part((*_OFF, *_LOG)),
    "everything": Part(("--progress", "plain", *_RUN, *_LOG), page=True),
}


def steps_per_second(part: Part) -> float:
    """The median of steps per second over the windows of one run."""
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "worker.py"
        script.write_text(WORKER)
        options = [one.format(run=Path(name) / "run") for one in part.options] + ["--http"] * part.page
        command = ["-m", "psworker", "local", "--workers", str(WORKERS), "--threads", "1", *options, str(script)]
        local = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert local.stdout is not None
        assert local.stderr is not None
        messages = _Messages(local.stderr)
        output = local.stdout.read()
        code = local.wait(170)
        messages.join()
    if code:
        raise SystemExit(f"psworker local {' '.join(options)} ended with code {code}:\n{messages.text}")
    if part.page and not messages.samples:
        raise SystemExit("the viewer of the page has seen nothing")
    return statistics.median([float(found[1]) for found in re.finditer(r"WINDOW ([\d.]+)", output)][:WINDOWS])


class _Messages(threading.Thread):
    """Reads what `psworker local` says, and follows the live page as a browser does once its URL is there."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self.text, self.samples = "", 0
        self._stream, self._viewer = stream, threading.Thread()
        self.start()

    def run(self) -> None:
        """Read until the end."""
        for line in self._stream:
            self.text += line
            if found := re.search(r"(http://\S+?/)(?:\?token=([^\s\"]+))?[\s\"]", line):
                self._viewer = threading.Thread(target=self._follow, args=found.groups())
                self._viewer.start()
        if self._viewer.ident is not None:
            self._viewer.join()

    def _follow(self, page: str, token: str | None) -> None:
        request = urllib.request.Request(f"{page}api/stream", headers={"Authorization": f"Bearer {token}"})
        with suppress(OSError), urllib.request.urlopen(request, timeout=30) as stream:
            for line in stream:
                self.samples += line.startswith(b"data:")


def compare(name: str, pairs: int) -> None:
    """Prints the figures of a part and of nothing, in turns, and the median of the ratios of each pair."""
    figures, ratios = _report.Figures("observability", "steps/s"), []
    for number in range(pairs):
        seen = {}
        for system in (name, "nothing") if number % 2 else ("nothing", name):
            seen[system] = steps_per_second(PARTS.get(system, NOTHING))
            figures.add(f"paramserver-{system}", seen[system])
        ratios.append(seen[name] / seen["nothing"])
    figures.report([], more_is_better=True)
    low, _, high = statistics.quantiles(ratios)
    print(f"{name}: {statistics.median(ratios):.4f} of the steps/s with nothing (quartiles {low:.4f}, {high:.4f})")


def main() -> None:
    """Compares the parts that are named."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["everything"], choices=[*PARTS, "all"])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    options = parser.parse_args()
    _report.describe_machine()
    for name in PARTS if "all" in options.parts else options.parts:
        compare(name, options.pairs)


if __name__ == "__main__":
    main()
