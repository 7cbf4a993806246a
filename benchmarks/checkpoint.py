"""What checkpoints and the journal cost: steps per second, the slowest push, seconds to write and to restore.

    python benchmarks/checkpoint.py [--folder DIR] [--gb 3]

Rates are those of the whole job (softmax regression and Deep MNIST, one server, numpy's rules, workers on this
machine), alternating between the server's options. A push is of all variables of Deep MNIST with Adam, and its answer
has them all. Restoring is from `kill -9` to the first push that a new process of the server has applied. `--gb` is the
size of the large state, values and slots together, and 0 leaves it out. `--folder` is on the disk that is measured.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import _push_pull
import _report
import cluster
import numpy as np

from pswire import optimizers
from pswire.messages import Cut, Declaration
from pswire.tensors.values import TensorSpec
from psworker.client.client import Client
from psworker.transport.network_transport import NetworkTransport
from psworker.versions import VersionedArray

MB = 1e6
TIMEOUT = 300.0

#: Options of the server by what they measure.
JOURNALS = {
    "nothing": (),
    "checkpoint-each-10s": ("--checkpoint-every", "10s"),
    "journal-every": ("--journal",),
    "journal-100ms": ("--journal", "--journal-sync", "100ms"),
    "journal-off": ("--journal", "--journal-sync", "off"),
}

SOFTMAX = """
import psworker as ps
from psworker import datasets, ops

mnist = datasets.mnist()
W = ps.Variable(ops.zeros((784, 10)), name="W")
b = ps.Variable(ops.zeros((10,)), name="b")
optimizer = ps.GradientDescent(learning_rate=0.01)
with ps.session() as session:
    for batch in session.batches(mnist.train, batch_size=100, epochs=1_000_000):
        optimizer.minimize(ops.softmax_cross_entropy(ops.matmul(batch.image, W) + b, batch.label))
"""


def disk(folder: Path) -> None:
    """What the disk gives to one writer that syncs after each block."""
    for name, nbytes, count in (("13MB", 13_100_000, _report.size(40, 1)), ("32KB", 32_000, _report.size(300, 3))):
        block, path = os.urandom(nbytes), folder / "disk"
        with open(path, "wb", buffering=0) as file:
            seconds = []
            for _ in range(count):
                began = time.perf_counter()
                file.write(block)
                os.fdatasync(file.fileno())
                seconds.append(time.perf_counter() - began)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        path.unlink()
        median = statistics.median(seconds)
        print(f"RESULT disk-sync {name} {1e3 * median:.2f} ms ({nbytes / MB / median:.0f} MB/s)", flush=True)


def rates(folder: Path, work: str, program: Sequence[str], workers: int, kinds: Sequence[str], rounds: int) -> None:
    """Steps per second with these options of the server, in turn, and their ratios to those without."""
    figures = _report.Figures(f"{work}-{workers}w", "steps/s")
    for _ in range(rounds):
        for kind in kinds:
            with tempfile.TemporaryDirectory(dir=folder) as kept:
                options = ("--checkpoint-dir", kept, *JOURNALS[kind]) if JOURNALS[kind] else ()
                rate, _ = cluster.ours(workers, numba=False, server_options=options, program=program)
            figures.add(f"paramserver-{kind}", rate)
    pairs = [(f"paramserver-{kind}", "paramserver-nothing") for kind in kinds if kind != "nothing"]
    figures.report(pairs, more_is_better=True)


def latency(folder: Path, seconds: float) -> None:
    """The slowest and the median push of one worker while checkpoints are written, one after the other, and without."""
    for name, options in (("nothing", ()), ("checkpoint-each-1s", ("--checkpoint-every", "1s"))):
        with tempfile.TemporaryDirectory(dir=folder) as kept, served(Path(kept), *options) as (client, weights):
            gradients = _push_pull.arrays(1e-3, 1)
            pushes, until = [], time.perf_counter() + seconds
            while time.perf_counter() < until:
                began = time.perf_counter()
                weights = push(client, weights, gradients)
                pushes.append(1e3 * (time.perf_counter() - began))
        pushes = pushes[_report.size(10, 0) :]
        spread = f"(slowest {max(pushes):.1f}, 99 % below {np.percentile(pushes, 99):.1f}, {len(pushes)} pushes)"
        print(f"RESULT push-latency paramserver-{name} {statistics.median(pushes):.1f} ms {spread}", flush=True)


def push(client: Client, weights: Sequence[VersionedArray], gradients: dict[str, np.ndarray]) -> list[VersionedArray]:
    entries = [VersionedArray(one.name, one.read, gradients[one.name]) for one in weights]
    return client.push(entries, pull=[one.name for one in weights]).result().values


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[Client, list[VersionedArray]]]:
    """A client of a server that keeps its state there, with the variables of Deep MNIST."""
    with (
        _report.server_process("--checkpoint-dir", str(folder), *options) as server,
        closing(NetworkTransport([server.address])) as transport,
    ):
        client = Client(transport, "worker", TIMEOUT)
        client.join()
        arrays = _push_pull.arrays(0.1, 0)
        weights = client.register([_push_pull.declaration(name, one) for name, one in arrays.items()])
        yield client, weights
        client.leave()


def write_and_restore(folder: Path, work: str, shapes: Sequence[tuple[int, ...]], journal: bool) -> None:
    """Seconds to write a checkpoint of variables of these shapes with Adam, and from `kill -9` to the next push."""
    rng = np.random.default_rng(0)
    names = [f"v{number}" for number in range(len(shapes))]
    nbytes = 3 * 4 * sum(int(np.prod(shape)) for shape in shapes)
    options = ["--checkpoint-dir", str(folder), "--memory-limit", str(8 * nbytes + (1 << 30))]
    options += ["--journal"] * journal
    with start(options) as (process, address), closing(NetworkTransport([address])) as transport:
        client = Client(transport, "worker", TIMEOUT)
        client.join()
        for name, shape in zip(names, shapes, strict=True):
            value = rng.standard_normal(shape, np.float32)
            client.register([Declaration(TensorSpec.of(name, value), value, optimizers.Adam(1e-4))])
        small = np.zeros(1, np.float32)
        [last] = client.register([Declaration(TensorSpec.of("last", small), small, optimizers.Adam(1e-4))])
        client.push([VersionedArray("last", last.read, small)], pull=["last"]).result()
        began = time.perf_counter()
        number = transport.call(0, Cut(), TIMEOUT).result().number
        while not (report := transport.call(0, Cut(number), TIMEOUT).result()).written:
            assert not report.problem, report.problem
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        print(f"RESULT write-{work} paramserver {seconds:.2f} s ({nbytes / MB / seconds:.0f} MB/s)", flush=True)
        [last] = client.pull(["last"])
        process.kill()
        process.wait()
        began = time.perf_counter()
        with start([*options, "--bind", address]) as _:
            listening = time.perf_counter() - began
            client.push([VersionedArray("last", last.read, small)], pull=["last"]).result()
            seconds = time.perf_counter() - began
            rate = f"listening after {listening:.2f} s, {nbytes / MB / seconds:.0f} MB/s"
            print(f"RESULT restore-{work} paramserver {seconds:.2f} s ({rate})", flush=True)
            client.leave()


@contextmanager
def start(options: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process, which is stopped with the block if it still runs, and its address."""
    command = [sys.executable, "-m", "psserver", "serve", "--bind", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"listening on (\S+)", process.stdout.readline())
            assert found is not None, "the server did not start"
            yield process, found[1]
        finally:
            process.terminate()


def main() -> None:
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=None, help="on the disk that is measured; default: temporary")
    parser.add_argument("--gb", type=float, default=_report.size(3.0, 0.0), help="size of the large state; 0: none")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=["disk", "rates", "latency", "restore"], action="append")
    options = parser.parse_args()
    chosen = options.only or ["disk", "rates", "latency", "restore"]
    _report.describe_machine()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        if "disk" in chosen:
            disk(folder)
        if "rates" in chosen:
            script = folder / "softmax.py"
            script.write_text(SOFTMAX)
            kinds = ["nothing", "journal-every", "journal-100ms", "journal-off"]
            for workers in _report.size((1, 2), (1,)):
                rates(folder, "small", [str(script)], workers, _report.size(kinds, kinds[:2]), options.rounds)
            for kind in _report.size(("journal-every", "checkpoint-each-10s"), ()):
                rates(folder, "deep", cluster.PROGRAM, 2, ["nothing", kind], options.rounds)
        if "latency" in chosen:
            latency(folder, _report.size(8.0, 0.1))
        if "restore" in chosen:
            shapes = list(_push_pull.SHAPES.values())
            write_and_restore(folder / "deep", "deep", shapes, journal=True)
            if options.gb:
                rows = int(options.gb * 1e9 / 12 / 24 / 1024)
                write_and_restore(folder / "large", "large", [(rows, 1024)] * 24, journal=False)


if __name__ == "__main__":
    main()
