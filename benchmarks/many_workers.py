"""Small pushes of many workers: 20 floats, 1 to 100 workers, one shard; rate, latency, processor time, fairness.

    python benchmarks/many_workers.py                                  # one shard
    python benchmarks/many_workers.py --shards 2 4                     # the variable on one of several shards
    python benchmarks/many_workers.py --shards 2 4 --model spread      # a variable of 20 floats on each shard

Server processes as `psserver serve` starts them, and one process for each worker with the client that sessions use
(`psworker.client`, gRPC on loopback). A worker pushes, waits for the answer with the fresh weights, and pushes again.
Workers are processes and not threads: threads of one process would wait for its interpreter's lock, and that wait would
be measured. They are forked from a process that has imported everything, so that 100 of them start within seconds.

Rates need processor cores for the workers too: "workers" is their processor time a push, beside "server", that of all
servers. Where the two together are more than the machine has, workers and servers share it; the server's processor time
a push is what compares one version with another on any machine.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import _report
import numpy as np

from pswire import specs
from pswire.messages import Declaration
from pswire.values import TensorSpec
from psworker.client import Client
from psworker.placement import Whole
from psworker.transport.network import NetworkTransport

WORKERS = (1, 4, 16, 64, 100)
FLOATS = 20
WARM_UP, WINDOW = 1.0, 4.0  # seconds
TIMEOUT = 60.0  # seconds that a worker has to join, and a push has


class Pushes(NamedTuple):
    """What one worker did within the window: milliseconds of each push, and its processor time in seconds."""

    latencies: np.ndarray
    processor: float


class Run(NamedTuple):
    """What all workers did within the window, and the seconds of processor time that the servers took for it."""

    workers: list[Pushes]
    servers: float

    @property
    def pushes(self) -> int:
        """How many there were."""
        return sum(len(one.latencies) for one in self.workers)


def work(addresses: list[str], names: list[str], number: int, parent: Connection) -> None:
    """One worker: joins, registers, says so, and pushes from the moment that it is given to another one."""
    with closing(Client(NetworkTransport(addresses), f"worker-{number}", TIMEOUT)) as client:
        client.join()
        zeros = np.zeros(FLOATS, np.float32)
        optimizer = specs.GradientDescent(learning_rate=1e-3)
        wholes = client.register([Declaration(TensorSpec.of(name, zeros), zeros, optimizer) for name in names])
        gradient = np.random.default_rng(number).standard_normal(FLOATS).astype(np.float32)
        parent.send(None)
        begin, end = parent.recv()
        seen: list[float] = []
        processor = 0.0
        before = time.monotonic()
        while before < end:
            gradients = [Whole(one.name, one.versions, gradient, one.served_at) for one in wholes]
            wholes = list(client.push(gradients, pull=names).wait().values)
            after = time.monotonic()
            if before < begin:
                processor = time.process_time()
            elif after <= end:
                seen.append((after - before) * 1e3)
            before = after
        parent.send(Pushes(np.array(seen), time.process_time() - processor))
        client.leave()


def measure(addresses: list[str], pids: list[int], names: list[str], count: int) -> Run:
    """Has `count` workers push, and looks at the servers' processor time meanwhile."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["psworker.client", "psworker.transport.network"])
    pipes, processes = [], []
    for number in range(count):
        here, there = context.Pipe()
        process = context.Process(target=work, args=(addresses, names, number, there), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    begin = time.monotonic() + WARM_UP
    for pipe in pipes:
        pipe.send((begin, begin + WINDOW))
    time.sleep(max(0.0, begin - time.monotonic()))
    before = sum(map(processor_time, pids))
    time.sleep(max(0.0, begin + WINDOW - time.monotonic()))
    servers = sum(map(processor_time, pids)) - before
    seen = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return Run(seen, servers)


def processor_time(pid: int) -> float:
    """Seconds that a process has used so far, in user and system mode (proc(5)). Linux only."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show(system: str, run: Run) -> None:
    """Prints the RESULT lines of one run."""
    every = np.concatenate([one.latencies for one in run.workers])
    p50, p99 = np.percentile(every, [50, 99])
    slowest = max(np.percentile(one.latencies, 99) if len(one.latencies) else np.inf for one in run.workers)
    counts = [len(one.latencies) for one in run.workers]
    workers = sum(one.processor for one in run.workers)
    mean = run.pushes / len(counts)
    spread = f"(fewest {min(counts) / mean:.2f}, most {max(counts) / mean:.2f} of the mean of {mean:.0f} pushes)"
    for work_name, figure, unit in (
        ("rate", f"{run.pushes / WINDOW:.0f}", "pushes/s"),
        ("p50", f"{p50:.2f}", "ms"),
        ("p99", f"{p99:.2f}", "ms"),
        ("p99-of-the-slowest-worker", f"{slowest:.2f}", f"ms {spread}"),
        ("processor-server", f"{run.servers / run.pushes * 1e3:.3f}", "ms/push"),
        ("processor-workers", f"{workers / run.pushes * 1e3:.3f}", "ms/push"),
    ):
        print(f"RESULT many-workers-{work_name} {system} {figure} {unit}", flush=True)


def main() -> None:
    """Measures each number of workers at fresh servers."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="how many, one run for each number")
    parser.add_argument("--shards", type=int, nargs="+", default=[1], help="how many, one run for each number")
    parser.add_argument("--model", choices=["one", "spread"], default="one", help="on one shard, or on all of them")
    options = parser.parse_args()
    _report.describe_machine()
    began = time.monotonic()
    for shards in options.shards:
        names = [f"w{index}" for index in range(shards if options.model == "spread" else 1)]
        for count in options.workers:
            with ExitStack() as stack:
                serve = ("--bind", "127.0.0.1:0", "--lease", "60", "--shard")
                servers = [
                    stack.enter_context(_report.server_process(*serve, f"{shard}/{shards}")) for shard in range(shards)
                ]
                run = measure([one.address for one in servers], [one.pid for one in servers], names, count)
            where = "" if shards == 1 else f"-{shards}-shards-{options.model}"
            show(f"paramserver-{count}w{where}", run)
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
