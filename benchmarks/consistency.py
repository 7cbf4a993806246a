"""One job under each consistency: Deep MNIST's network, three workers, one of which takes 0.3 s longer for each step.

    python benchmarks/consistency.py [--plot docs/consistency.png]

6,000 images once, in batches of 50, Adam. For each configuration: batches per second over all workers, staleness of
pushes, and final cost over 500 test images. For the plot an observer pulls the weights every second; their cost is
computed when the job has ended.
"""

import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import _report
import numpy as np
from _consistency_job import BATCH, IMAGES, Network

import psworker as ps
from pswire.messages import Status
from psworker import datasets
from psworker.transport.network_transport import NetworkTransport

JOB = Path(__file__).with_name("_consistency_job.py")
PAUSE = _report.size(0.3, 0.0)
SNAPSHOT = 1.0  # seconds between pulls of the observer
POINTS = 10  # maximum for a curve


@dataclass(frozen=True)
class Way:
    """One configuration: options of servers and workers."""

    server: tuple[str, ...] = ()
    worker: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [word.lstrip("-") for word in (*self.server, *self.worker)]
        return "-".join(words).replace("consistency-", "").replace(":", "") or "async"


WAYS = (
    Way(),
    Way(("--staleness", "scale")),
    Way(("--staleness", "delay-compensated")),
    Way(("--staleness", "drop:2")),
    Way(("--consistency", "bounded:2")),
    Way(("--consistency", "sync:3")),
    Way(("--consistency", "sync:2,backup=1")),
    Way((), ("--overlap",)),
    Way((), ("--push-every", "4", "--pull-every", "4")),
    Way((), ("--local-steps", "8")),
)


def workers(address: str, options: tuple[str, ...]) -> list[subprocess.Popen[bytes]]:
    """Three worker processes, the last of them slow."""
    run = [sys.executable, "-m", "psworker", "run", "--servers", address, "--threads", "1", *options]
    commands = [[*run, "--name", f"worker-{number}", str(JOB)] for number in range(3)]
    commands[-1] += ["--pause", str(PAUSE)]
    return [subprocess.Popen(command) for command in commands]


def observe(address: str, processes: list[subprocess.Popen[bytes]]) -> tuple[float, list[tuple[float, float]]]:
    """Seconds from the first update to the end of the job, and the cost at moments in between."""
    with ps.collection():
        network = Network()
        with ps.session(servers=address, name="observer", resume=True) as session:
            first = ps.global_variables()[0]
            while not first.version:
                wait_for_one(processes, 0.02)
                session.pull([first])
                assert all(process.poll() in (None, 0) for process in processes), "a worker has failed"
            began, seen = time.monotonic(), []
            while True:
                running = any(process.poll() is None for process in processes)
                session.pull()
                seen.append((time.monotonic() - began, [one.value for one in ps.global_variables()]))
                if not running:
                    break
                wait_for_one(processes, SNAPSHOT)
            assert not any(process.returncode for process in processes), "a worker has failed"
        chosen = sorted({round(index) for index in np.linspace(0, len(seen) - 1, POINTS)})
        return seen[-1][0], [(seen[index][0], cost(network, seen[index][1])) for index in chosen]


def wait_for_one(processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Returns after `seconds`, or when the last process has ended."""
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return


def cost(network: Network, values: list[np.ndarray]) -> float:
    """Over the first 500 test images."""
    for variable, value in zip(ps.global_variables(), values, strict=True):
        variable.assign(value)
    test = datasets.mnist().test.take(np.arange(500))
    with ps.no_grad():
        return float(network.cost(test.image, test.label))


def plot(path: Path, curves: dict[str, list[tuple[float, float]]]) -> None:
    """Cost against time, one line for each configuration."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=name, linewidth=1.4)
    axes.set(xlabel="seconds since the first update", ylabel="cost over 500 test images", yscale="log")
    axes.set_title(
        f"Deep MNIST's network, {IMAGES:,} images, three workers, one {PAUSE:g} s slower a step", fontsize=10
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")


def main() -> None:
    """Runs the job in every configuration."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, help="where to write the plot (PNG; needs matplotlib)")
    options = parser.parse_args()
    _report.describe_machine()
    curves = {}
    print(f"{'':28} {'batches/s':>9} {'updates':>8} {'dropped':>8} {'staleness p50':>13} {'p99':>4} {'cost':>7}")
    for way in _report.size(WAYS, WAYS[5:6]):
        with _report.server(*way.server) as address:
            processes = workers(address, way.worker)
            try:
                seconds, curves[str(way)] = observe(address, processes)
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
            with closing(NetworkTransport([address])) as transport:
                status = transport.call(0, Status(), 5.0).result()
        rate, end = IMAGES / BATCH / seconds, curves[str(way)][-1][1]
        stale = f"{status.staleness.p50:13} {status.staleness.p99:4}"
        print(f"{way!s:28} {rate:9.1f} {status.global_step:8} {status.dropped:8} {stale} {end:7.4f}")
        print(f"RESULT consistency-rate paramserver-{way} {rate:.1f} batches/s")
        print(f"RESULT consistency-cost paramserver-{way} {end:.4f} nats", flush=True)
    if options.plot:
        plot(options.plot, curves)


if __name__ == "__main__":
    main()
