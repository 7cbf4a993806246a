"""The cost of seeing: CPU time of a small model with everything that shows a run, and of the same with nothing of it.

    python benchmarks/observability.py                  # everything against nothing: three minutes
    python benchmarks/observability.py page guard ...   # these parts against nothing; all: each of them

Softmax regression on MNIST, batch 100, one shard and two workers with one BLAS thread: a step takes about a
millisecond, and all cores are busy, so what is added is seen as nowhere else. `everything` is `psworker local` with the
live page and a viewer, a run folder with scalars, TensorBoard files and events, the guard, lines of progress, and a log
in JSON. `metrics` and `server` are options of `psserver serve`, with workers that join it: metrics that are scraped
every five seconds, and with them a page and a viewer, the guard, and a log in JSON.

With all cores busy, a share of CPU time is a share of steps per second. It is measured in the middle of the run, for
the processes that only show the job, such as that of the page: exactly; and for servers and workers by step, in a job
with the part and one without. The speed of a machine changes by some percent from one second to the next, which is more
than what is looked for. So both run at the same time, several times, and what is compared is the fastest tenth of their
windows of 1,000 steps. Each job has half of the cores, so what is done once a second counts twice in it.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import _report
from small_model import WINDOW, WORKER

from pswire.system.host import cores

CORES = cores()
WORKERS, PAIRS, LIMIT = 2, _report.size(8, 1), 170
SCRAPE_EVERY = 5.0  # seconds


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
    "nothing": NOTHING[False],
    "page": Part((*_OFF, *_PAGE), viewer=True),
    "run-folder": Part((*_OFF, *_RUN)),
    "guard": Part(("--progress", "off")),
    "progress": Part(("--progress", "plain", "--guard", "off")),
    "log": Part((*_OFF, *_LOG)),
    "metrics": Part(_PAGE, served=True, scraper=True),
    "server": Part((*_PAGE, *_LOG), served=True, scraper=True, viewer=True),
    "everything": Part(("--progress", "plain", *_PAGE, *_RUN, *_LOG), viewer=True),
}


class Cpu(NamedTuple):
    """CPU seconds, of servers and workers and of all others, until some moment (of any clock)."""

    job: float
    others: float
    at: float


class Run:
    """One job. Its chief reports each window of steps: between the first and the last CPU time is measured."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._processes: list[_Process] = []
        self._marks: list[Cpu] = []

    def cpu(self) -> tuple[list[float], float]:
        """Run the job; by window, CPU seconds of servers and workers for 1,000 steps, and the others' share of all."""
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "worker.py"
            script.write_text(WORKER)
            options = [one.format(run=Path(folder) / "run") for one in self._part.options]
            program = ["--threads", "1", str(script)]
            if self._part.served:
                server = self._start("psserver", "serve", "--bind", "127.0.0.1:0", "--linger", "1", *options)
                servers = "--servers", server.address()
                for number in range(WORKERS):
                    self._start("psworker", "run", *servers, "--name", f"w{number}", *program)
            else:
                self._start("psworker", "local", "--workers", str(WORKERS), *options, *program)
            for one in reversed(self._processes):
                one.end()
        first, last = self._marks[0], self._marks[-1]
        steps = [(after.job - before.job) / WINDOW * 1000 for before, after in pairwise(self._marks)]
        return steps, (last.others - first.others) / (last.at - first.at) / CORES

    def _start(self, package: str, *arguments: str) -> "_Process":
        watched = self._part if not self._processes else Part()
        self._processes.append(_Process(watched, self._mark, package, *arguments))
        return self._processes[-1]

    def _mark(self) -> None:
        self._marks.append(_cpu([one.pid for one in self._processes]))


def _cpu(roots: list[int]) -> Cpu:
    """The CPU time of these processes, and of all that they have started and that run."""
    parents, times, at = {}, {}, time.monotonic()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], times[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    job, others, present = 0, 0, roots
    while present:
        for pid in present:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"serve" in command or b"run" in command:
                job += times[pid]
            else:
                others += times[pid]
        present = [pid for pid, parent in parents.items() if parent in present]
    ticks = os.sysconf("SC_CLK_TCK")
    return Cpu(job / ticks, others / ticks, at)


class _Process(threading.Thread):
    """A command whose output is read, and whose page is followed as browsers and Prometheus do once its URL is there.

    `mark` is called at the end of each window of steps.
    """

    def __init__(self, part: Part, mark: Callable[[], None], package: str, *arguments: str) -> None:
        super().__init__()
        self._text, self._part, self._mark, self._package = "", part, mark, package
        self._bound, self._over = threading.Event(), threading.Event()
        self._seen = {"viewer": 0, "scraper": 0}
        command = [sys.executable, "-m", package, *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.pid = self._process.pid
        self.start()

    def address(self) -> str:
        """The address of a server, once it is ready."""
        self._bound.wait(LIMIT)
        return re.findall(r"listening on (\S+)", self._text)[0]

    def end(self) -> None:
        """Wait for the end of the process; its viewer and its scraper must have had something to read."""
        code = self._process.wait(LIMIT)
        self.join()
        if code or not all(self._seen[name] for name in self._seen if getattr(self._part, name)):
            raise SystemExit(f"{self._package} ended with code {code}, {self._seen}:\n{self._text}")

    def run(self) -> None:
        """Read until the end."""
        readers: list[threading.Thread] = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._text += line
            if "WINDOW" in line:
                self._mark()
            if "listening on" in line:
                self._bound.set()
            if not readers and (found := re.search(r"(http://\S+?/)(?:\?token=([^\s\"]+))?[\s\"]", line)):
                wanted = [self._view] * self._part.viewer + [self._scrape] * self._part.scraper
                readers = [threading.Thread(target=one, args=found.groups()) for one in wanted]
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
        while not self._over.wait(SCRAPE_EVERY):
            with suppress(OSError), urllib.request.urlopen(request, timeout=30) as answer:
                self._seen["scraper"] += b"paramserver_pushes_total" in answer.read()


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def compare(name: str, pairs: int) -> None:
    """Prints the figures of a part and of a job without it at the same time, and their comparison."""
    figures, shares = _report.Figures("observability", "CPU s/1000 steps", 3), []
    windows: dict[str, list[float]] = defaultdict(list)
    parts = {name: PARTS[name], "without": NOTHING[PARTS[name].served]}
    for _ in range(pairs):
        with ThreadPoolExecutor() as both:
            found = list(both.map(Run.cpu, [Run(part) for part in parts.values()]))
        for system, (cpu, _) in zip(parts, found, strict=True):
            figures.add(f"paramserver-{system}", statistics.median(cpu))
            windows[system] += cpu
        shares.append(found[0][1] - found[1][1])
    figures.report([], more_is_better=False)
    share = f"{100 * statistics.median(shares):.2f} %"
    fast, without = [statistics.quantiles(one, n=10)[0] for one in windows.values()]
    job = f"{100 * (fast / without - 1):+.1f} %"
    print(f"{name}: {share} of all cores in processes of its own; servers and workers {job}")


def main() -> None:
    """Compares the parts that are named."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parts = _report.one_of([*PARTS, "all"])
    parser.add_argument("parts", nargs="*", default=["everything"], type=parts, metavar="PART")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    options = parser.parse_args()
    _report.describe_machine()
    for name in PARTS if "all" in options.parts else options.parts:
        compare(name, options.pairs)


if __name__ == "__main__":
    main()
