"""The cost of seeing: steps per second of a small model with everything that shows a run, in turns with nothing of it.

    python benchmarks/observability.py                  # everything against nothing: five minutes
    python benchmarks/observability.py page guard ...   # these parts against nothing; all: each of them

Softmax regression on MNIST, batch 100, one shard and two workers with one BLAS thread: a step takes about a
millisecond, and all cores are busy, so what is added is seen as nowhere else. `everything` is `psworker local` with the
live page and a viewer, a run folder with scalars, TensorBoard files and events, the guard, lines of progress, and a log
in JSON. `metrics` and `server` are options of `psserver serve`, with workers that join it: metrics that are scraped
once a second, and with them a page and a viewer, the guard, and a log in JSON.

Load of the machine disturbs single runs by some percent: the figure is the median of the ratios of two runs, one after
the other, in either order in turns.
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
from typing import NamedTuple

import _report
from small_model import WINDOWS, WORKER

WORKERS, PAIRS, LIMIT = 2, 8, 170


class Part(NamedTuple):
    """Options of `psworker local`, or of `psserver serve` if it is `served`; `{run}` is the folder of the run."""

    options: tuple[str, ...] = ()
    served: bool = False
    viewer: bool = False
    scraper: bool = False


_RUN = ("--run-dir", "{run}", "--checkpoint-every", "1h")
_LOG = ("--log-format", "json", "--log-level", "info")
_OFF = ("--progress", "off", "--guard", "off")
_PAGE = ("--http", "127.0.0.1:0")

NOTHING = {False: Part(_OFF), True: Part(served=True)}
PARTS = {
    "page": Part((*_OFF, *_PAGE), viewer=True),
    "run-folder": Part((*_OFF, *_RUN)),
    "guard": Part(("--progress", "off")),
    "progress": Part(("--progress", "plain", "--guard", "off")),
    "log": Part((*_OFF, *_LOG)),
    "metrics": Part(_PAGE, served=True, scraper=True),
    "server": Part((*_PAGE, *_LOG), served=True, scraper=True, viewer=True),
    "everything": Part(("--progress", "plain", *_PAGE, *_RUN, *_LOG), viewer=True),
}


def steps_per_second(part: Part) -> float:
    """The median of steps per second over the windows of one run."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "worker.py"
        script.write_text(WORKER)
        options = [one.format(run=Path(folder) / "run") for one in part.options]
        program = ["--threads", "1", str(script)]
        if not part.served:
            local = _Process(part, "psworker", "local", "--workers", str(WORKERS), *options, *program)
            local.end()
            output = local.text
        else:
            server = _Process(part, "psserver", "serve", "--bind", "127.0.0.1:0", "--linger", "1", *options)
            run = "psworker", "run", "--servers", server.address()
            workers = [_Process(Part(), *run, "--name", f"w{number}", *program) for number in range(WORKERS)]
            for one in (*workers, server):
                one.end()
            output = "".join([one.text for one in workers])
    return statistics.median([float(found[1]) for found in re.finditer(r"WINDOW ([\d.]+)", output)][:WINDOWS])


class _Process(threading.Thread):
    """A command whose output is read, and whose page is followed as a browser and Prometheus do once its URL is there."""

    def __init__(self, part: Part, package: str, *arguments: str) -> None:
        super().__init__()
        self.text, self._part, self._package = "", part, package
        self._bound, self._over = threading.Event(), threading.Event()
        self._seen = {"viewer": 0, "scraper": 0}
        command = [sys.executable, "-m", package, *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.start()

    def address(self) -> str:
        """The address of a server, once it is ready."""
        self._bound.wait(LIMIT)
        return re.findall(r"listening on (\S+)", self.text)[0]

    def end(self) -> None:
        """Wait for the end of the process; its viewer and its scraper must have had something to read."""
        code = self._process.wait(LIMIT)
        self.join()
        if code or not all(self._seen[name] for name in self._seen if getattr(self._part, name)):
            raise SystemExit(f"{self._package} ended with code {code}, {self._seen}:\n{self.text}")

    def run(self) -> None:
        """Read until the end."""
        readers = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.text += line
            if "listening on" in line:
                self._bound.set()
            if not readers and (found := re.search(r"(http://\S+?/)(?:\?token=([^\s\"]+))?[\s\"]", line)):
                readers = [self._view] * self._part.viewer + [self._scrape] * self._part.scraper
                readers = [threading.Thread(target=one, args=found.groups()) for one in readers]
                for one in readers:
                    one.start()
        self._over.set()
        for one in readers:
            one.join()

    def _view(self, page: str, token: str | None) -> None:
        request = urllib.request.Request(f"{page}api/stream", headers=_headers(token))
        with suppress(OSError), urllib.request.urlopen(request, timeout=30) as stream:
            for line in stream:
                self._seen["viewer"] += line.startswith(b"data:")

    def _scrape(self, page: str, token: str | None) -> None:
        request = urllib.request.Request(f"{page}metrics", headers=_headers(token))
        while not self._over.wait(1.0):
            with suppress(OSError), urllib.request.urlopen(request, timeout=30) as answer:
                self._seen["scraper"] += b"paramserver_pushes_total" in answer.read()


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def compare(name: str, pairs: int) -> None:
    """Prints the figures of a part and of nothing, in turns, and the median of the ratios of each pair."""
    figures, ratios = _report.Figures("observability", "steps/s"), []
    nothing = NOTHING[PARTS[name].served]
    for number in range(pairs):
        seen = {}
        for system in (name, "nothing") if number % 2 else ("nothing", name):
            seen[system] = steps_per_second(PARTS.get(system, nothing))
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
