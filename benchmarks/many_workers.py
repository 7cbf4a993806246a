"""Small pushes of many workers: 20 floats, 1 to 100 workers, one shard; rate, latency, processor time, fairness.

    python benchmarks/many_workers.py                                  # one shard
    python benchmarks/many_workers.py --shards 2 4                     # the variable on one of several shards
    python benchmarks/many_workers.py --shards 2 4 --model spread      # a variable on each shard, 20 floats in all
    python benchmarks/many_workers.py --workers 1 --shards 1 2 --model spread --floats 1000000

Server processes of `psserver serve`, and workers with the client of sessions (`psworker.client.client`), over Unix
sockets, direct connections by TCP, and gRPC. A worker pushes, waits for the answer with the fresh weights, and pushes
again. Workers are threads of one process per core: 100 processes would start every push with a cold cache and take
about twice the processor time, so the workers, not the server, would be the limit.

"processor-server" is the processor time per push of all servers, "processor-workers" that of all workers. If their sum
exceeds the machine, workers and servers compete; compare versions by the processor time of the servers.
"""

import itertools
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import _report
import numpy as np

from pswire import optimizers
from pswire.messages import Declaration
from pswire.tensors.values import TensorSpec
from psworker.client.client import Client
from psworker.transport.network_transport import NetworkTransport
from psworker.versions import VersionedArray

WORKERS = _report.size((1, 4, 16, 64, 100), (1, 2))
FLOATS = 20
WARM_UP, WINDOW = _report.size((1.0, 4.0), (0.1, 0.5))  # seconds
TIMEOUT = 60.0  # timeout of joining and of a push, seconds


class Run(NamedTuple):
    """One window: milliseconds of each push of each worker, and seconds of processor time."""

    latencies: list[np.ndarray]
    workers: float
    servers: float


def work(
    addresses: list[str], way: _report.Way, names: list[str], floats: int, numbers: list[int], parent: Connection
) -> None:
    """A process of workers: they join, receive the window, push, and report their pushes within it."""
    with ThreadPoolExecutor(len(numbers)) as pool, ExitStack() as stack:
        clients = [
            stack.enter_context(
                closing(Client(NetworkTransport(addresses, **way._asdict()), f"worker-{number}", TIMEOUT))
            )
            for number in numbers
        ]
        registered = list(pool.map(partial(join, names, floats), clients))
        parent.send(None)
        begin, end = parent.recv()
        pushing = [pool.submit(push, *one, begin, end) for one in zip(clients, registered, strict=True)]
        processor = between(begin, end, time.process_time)
        parent.send(([one.result() for one in pushing], processor))
        for client in clients:
            client.leave()


def join(names: list[str], floats: int, client: Client) -> list[VersionedArray]:
    """Joins a worker and registers its variables."""
    client.join()
    zeros = np.zeros(floats // len(names), np.float32)
    optimizer = optimizers.GradientDescent(1e-3) if floats == FLOATS else optimizers.Adam(1e-3)
    return client.register([Declaration(TensorSpec.of(name, zeros), zeros, optimizer) for name in names])


def push(client: Client, wholes: list[VersionedArray], begin: float, end: float) -> np.ndarray:
    """Pushes until the window ends; milliseconds of each push that began and ended in it."""
    names = [one.name for one in wholes]
    gradient = np.full_like(wholes[0].array, 1e-3)
    seen: list[float] = []
    before = time.monotonic()
    while before < end:
        gradients = [VersionedArray(one.name, one.read, gradient) for one in wholes]
        wholes = list(client.push(gradients, pull=names).result().values)
        after = time.monotonic()
        if begin <= before and after <= end:
            seen.append((after - before) * 1e3)
        before = after
    return np.array(seen)


def measure(addresses: list[str], pids: list[int], way: _report.Way, names: list[str], floats: int, count: int) -> Run:
    """Measures `count` workers, and the processor time of the servers meanwhile."""
    context = multiprocessing.get_context("spawn")
    cores = len(os.sched_getaffinity(0))
    pipes, processes = [], []
    for first in range(min(count, cores)):
        here, there = context.Pipe()
        numbers = list(range(first, count, cores))
        process = context.Process(target=work, args=(addresses, way, names, floats, numbers, there), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    wait_until_idle(pids)
    begin = time.monotonic() + WARM_UP
    end = begin + WINDOW
    for pipe in pipes:
        pipe.send((begin, end))
    servers = between(begin, end, lambda: sum(map(processor_time, pids)))
    seen = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return Run([one for latencies, _ in seen for one in latencies], sum(processor for _, processor in seen), servers)


def between(begin: float, end: float, count: Callable[[], float]) -> float:
    """Growth of a count between two moments (monotonic)."""
    time.sleep(max(0.0, begin - time.monotonic()))
    before = count()
    time.sleep(max(0.0, end - time.monotonic()))
    return count() - before


def wait_until_idle(pids: list[int]) -> None:
    """Waits until servers have loaded what they load beside their first calls, such as compiled update rules."""
    used = math.inf
    while used > 0.02:
        used = between(time.monotonic(), time.monotonic() + 0.5, lambda: sum(map(processor_time, pids)))


def processor_time(pid: int) -> float:
    """Seconds that a process has used so far, in user and system mode (proc(5)). Linux only."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show(system: str, run: Run) -> None:
    """Prints the RESULT lines of one run."""
    counts = np.array([len(one) for one in run.latencies])
    pushes, mean = counts.sum(), counts.mean()
    p50, p99 = np.percentile(np.concatenate(run.latencies), [50, 99])
    slowest = max(np.percentile(one, 99) if len(one) else np.inf for one in run.latencies)
    spread = f"(pushes of a worker: {mean:.0f}, fewest {counts.min() / mean:.2f}, most {counts.max() / mean:.2f} of it)"
    for what, figure, unit in (
        ("rate", f"{pushes / WINDOW:.0f}", f"pushes/s {spread}"),
        ("p50", f"{p50:.2f}", "ms"),
        ("p99", f"{p99:.2f}", "ms"),
        ("p99-of-the-slowest-worker", f"{slowest:.2f}", "ms"),
        ("processor-server", f"{run.servers / pushes * 1e3:.3f}", "ms/push"),
        ("processor-workers", f"{run.workers / pushes * 1e3:.3f}", "ms/push"),
    ):
        print(f"RESULT many-workers-{what} {system} {figure} {unit}", flush=True)


def main() -> None:
    """Measures each number of workers with fresh servers."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="numbers, one run for each")
    parser.add_argument("--ways", choices=_report.WAYS, nargs="+", default=[*_report.WAYS], help="one run for each")
    parser.add_argument("--shards", type=int, nargs="+", default=[1], help="numbers, one run for each")
    parser.add_argument("--model", choices=["one", "spread"], default="one", help="variables on one shard, or on all")
    parser.add_argument("--floats", type=int, default=FLOATS, help="elements of all variables; Adam unless 20")
    options = parser.parse_args()
    _report.describe_machine()
    began = time.monotonic()
    for shards in options.shards:
        names = [f"w{index}" for index in range(shards if options.model == "spread" else 1)]
        for count, name in itertools.product(options.workers, options.ways):
            with ExitStack() as stack:
                serve = ("--bind", "127.0.0.1:0", "--lease", "60", "--shard")
                servers = [
                    stack.enter_context(_report.server_process(*serve, f"{shard}/{shards}")) for shard in range(shards)
                ]
                pids = [one.pid for one in servers]
                addresses = [one.address for one in servers]
                run = measure(addresses, pids, _report.WAYS[name], names, options.floats, count)
            where = "" if shards == 1 else f"-{shards}-shards-{options.model}"
            show(f"paramserver-{name}-{count}w{where}", run)
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
