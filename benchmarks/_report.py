"""Shared by the benchmarks: machine description, runs of peers in their environments, RESULT lines and ratios."""

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]

#: `RESULT <work> <system> <median> <unit>`, printed by every benchmark and peer script.
RESULT = re.compile(r"^RESULT (?P<work>\S+) (?P<system>\S+) (?P<median>\S+) (?P<unit>\S+)")


#: Whether benchmarks run in their smallest form, in seconds: it shows that they work, and its figures mean nothing. An
#: environment variable, so that the processes that they start have it as well.
SMALLEST = bool(os.environ.get("BENCHMARK_SMALLEST"))


def size(full: T, smallest: T) -> T:
    """One of the two sizes of a part of a benchmark."""
    return smallest if SMALLEST else full


def one_of(choices: Collection[str]) -> Callable[[str], str]:
    """The `type` of a positional argument that may be given several times, or not at all.

    With `choices`, argparse compares the list that is its default with each of them, and refuses it.
    """

    def chosen(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(choices)})")
        return text

    return chosen


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the options common to all benchmarks."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments: DIR/tf/bin/python and so on")
    parser.add_argument(
        "--peer-scripts", type=Path, default=ROOT.parent / "shared" / "peers", help="folder of the peers' scripts"
    )
    return parser


def describe_machine() -> None:
    """Prints the machine and the versions."""
    model = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    print(f"machine: {model}, {len(os.sched_getaffinity(0))} cores; {platform.system()} {platform.release()}")
    packages = ", ".join(f"{name} {_version(name)}" for name in ("paramserver", "numpy", "grpcio", "protobuf"))
    print(f"python {platform.python_version()}, {packages}", flush=True)


def run_peer(peers: Path, environment: str, script: Path, *args: str) -> list[tuple[str, str, float, str]]:
    """Runs a peer's script; returns its RESULT lines. If it cannot run, prints the reason and returns none."""
    return run_script(peers.absolute() / environment / "bin" / "python", script, *args)


def run_script(python: Path, script: Path, *args: str) -> list[tuple[str, str, float, str]]:
    """`run_peer` with any Python interpreter."""
    if not python.exists() or not script.exists():
        print(f"skipped {script.name}: no {python if script.exists() else script}", flush=True)
        return []
    done = subprocess.run(
        [python, script.name, *args], cwd=script.parent, capture_output=True, text=True, timeout=170, check=False
    )
    found = results(done.stdout)
    if not found:
        print(f"{script.name} gave no result (exit code {done.returncode}): {done.stderr[-500:]}", flush=True)
    return found


def results(text: str) -> list[tuple[str, str, float, str]]:
    """The RESULT lines of a script's output, as (work, system, median, unit)."""
    found = (RESULT.match(line) for line in text.splitlines())
    return [(m["work"], m["system"], float(m["median"]), m["unit"]) for m in found if m]


class Way(NamedTuple):
    """How tensors reach a server on this host, of which `psworker` and `NetworkTransport` have these options."""

    transport: str
    shared_memory: bool

    @property
    def flags(self) -> list[str]:
        """Options of `psworker local`."""
        return ["--transport", self.transport, *["--no-shared-memory"] * (not self.shared_memory)]


#: By the name in those of systems. With shared memory the messages go over a Unix socket, otherwise over TCP.
WAYS = {"shared-memory": Way("auto", True), "direct": Way("direct", False), "grpc": Way("grpc", False)}


@contextmanager
def server(*options: str) -> Iterator[str]:
    """The address of a server process that ends with the block."""
    with server_process(*options) as process:
        yield process.address


class ServerProcess(NamedTuple):
    """A server that is ready."""

    address: str
    pid: int


@contextmanager
def server_process(*options: str, environment: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """A server process that ends with the block; `environment` None: that of this process."""
    command = [sys.executable, "-m", "psserver", "serve", "--bind", "127.0.0.1:0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            yield ServerProcess(process.stdout.readline().split()[-1], process.pid)
        finally:
            process.terminate()


@contextmanager
def kernels(*, numba: bool) -> Iterator[dict[str, str]]:
    """The environment of processes that update with numba, or with numpy as if numba were not installed."""
    with tempfile.TemporaryDirectory() as folder:
        if not numba:
            (Path(folder) / "numba.py").write_text("raise ImportError('not in this run')\n")
        yield os.environ | {"PYTHONPATH": os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])}


class Memory:
    """Memory of another process on this machine, in bytes, shared memory included. Linux only.

    Attributes:
        rest: its memory when this object was created; `peak` counts from then on.
    """

    def __init__(self, pid: int) -> None:
        self._process = Path("/proc") / str(pid)
        (self._process / "clear_refs").write_text("5")  # resets the peak: proc(5)
        self.rest = self._read("VmRSS")

    def peak(self) -> int:
        """Its largest memory."""
        return self._read("VmHWM")

    def _read(self, what: str) -> int:
        lines = (self._process / "status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


class Figures:
    """Figures by system over alternating runs."""

    def __init__(self, work: str, unit: str, digits: int = 1) -> None:
        self.work, self.unit, self._digits = work, unit, digits
        self._seen: dict[str, list[float]] = defaultdict(list)

    def add(self, system: str, figure: float) -> None:
        """Adds and prints the figure of one run."""
        self._seen[system].append(figure)
        print(f"  {system}: {self._text(figure)} {self.unit}", flush=True)

    def systems(self) -> list[str]:
        """All measured systems."""
        return list(self._seen)

    def median(self, system: str) -> float:
        """The median over the runs."""
        return statistics.median(self._seen[system])

    def report(self, compared: Iterable[tuple[str, str]], *, more_is_better: bool) -> None:
        """Prints a RESULT line for each system, then the ratio for each measured pair of ours and a peer."""
        for system, seen in self._seen.items():
            spread = f"(min {self._text(min(seen))}, max {self._text(max(seen))}, {len(seen)} runs)"
            print(f"RESULT {self.work} {system} {self._text(self.median(system))} {self.unit} {spread}")
        for ours, peer in compared:
            if ours in self._seen and peer in self._seen:
                ratio = self.median(ours) / self.median(peer)
                times = f"{ratio:.2f} times" if more_is_better else f"{ratio:.2f} of the time of"
                print(f"{ours}: {times} {peer}")
        sys.stdout.flush()

    def _text(self, figure: float) -> str:
        return f"{figure:.{self._digits}f}"


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
