"""A worker and a server on a link of 1 and 10 Gbit/s, 0.2 and 5 ms: 13.1 MB pushed and pulled, and an empty call.

    sudo python benchmarks/links.py

The push and pull is that of transport.py: Adam, numba if it is installed. "sockets" are the bytes alone, between
processes that do nothing else: beyond some Gbit/s the link takes more processor time than this machine has. "of the
link" compares with the least time: the bytes one way and then back, without the 4 % that TCP and IP add, and both
delays. Needs root, for network namespaces.
"""

import multiprocessing
import statistics
import time
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection

import _report
from _echo import Task, echo
from _link import ADDRESSES, Rate, inside, link, reason_for_none
from _push_pull import ELEMENTS, arrays, declaration, empty, push_pull

from pswire.system.host import keep_memory
from psworker.client.client import Client
from psworker.transport.network_transport import NetworkTransport

RATES = _report.size([Rate(gbit, delay) for gbit in (1, 10) for delay in (0.0002, 0.005)], [Rate(10, 0.0002)])
WAYS = ("direct", "grpc")
STEPS = _report.size(20, 1)
WARM_UP = _report.size(5, 1)  # TCP begins slowly
EMPTY = _report.size(100, 2)
NBYTES = 4 * ELEMENTS
TIMEOUT = 60.0


def work(address: str, way: str, parent: Connection) -> None:
    """A worker: milliseconds of an empty call, and of a step, medians."""
    keep_memory()
    with closing(NetworkTransport([address], **_report.WAYS[way]._asdict())) as connection:
        calls = statistics.median(empty(connection, EMPTY))
        client = Client(connection, "worker", TIMEOUT)
        client.join()
        weights = client.register([declaration(name, value) for name, value in arrays(0.1, seed=0).items()])
        gradients, seen = arrays(1.0, seed=1), []
        for _ in range(WARM_UP + STEPS):
            began = time.perf_counter()
            weights = push_pull(client, weights, gradients)
            seen.append((time.perf_counter() - began) * 1e3)
        client.leave()
    parent.send((calls, statistics.median(seen[WARM_UP:])))


def measure(rate: Rate, way: str) -> tuple[float, float]:
    """Milliseconds of an empty call and of a step, on a new link."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with link(rate) as (first, second), ExitStack() as stack:
        with inside(first):
            address = stack.enter_context(_report.server("--bind", f"{ADDRESSES[0]}:0", "--insecure"))
        worker = context.Process(target=work, args=(address, way, there), daemon=True)
        with inside(second):
            worker.start()
        there.close()
        found = here.recv()
        worker.join()
    return found


def sockets(rate: Rate, nbytes: int, count: int) -> float:
    """Milliseconds of a round trip of bytes alone, on a new link."""
    task = Task("blocking-thread", nbytes, host=ADDRESSES[0])
    with link(rate) as (first, second), echo(task, inside(first), inside(second)) as server:
        seen = []
        for _ in range(WARM_UP + count):
            began = time.perf_counter()
            server.step()
            seen.append((time.perf_counter() - began) * 1e3)
    return statistics.median(seen[WARM_UP:])


def main() -> None:
    """Each link, with each transport in turn."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    _report.describe_machine()
    if reason := reason_for_none():
        print(f"skipped: {reason}")
        return
    began = time.monotonic()
    for rate in RATES:
        name = f"{rate.gbit}Gbit-{rate.delay * 1e3:g}ms"
        calls, steps = _report.Figures(f"link-{name}-empty", "ms", digits=2), _report.Figures(f"link-{name}", "ms")
        for _ in range(options.rounds):
            calls.add("sockets", sockets(rate, 1, EMPTY))
            steps.add("sockets", sockets(rate, NBYTES, STEPS))
            for way in WAYS:
                empty_call, step = measure(rate, way)
                calls.add(f"paramserver-{way}", empty_call)
                steps.add(f"paramserver-{way}", step)
        for figures in (calls, steps):
            figures.report((), more_is_better=False)
        least = rate.least(NBYTES) * 1e3
        for system in steps.systems():
            print(f"{system}: {least / steps.median(system):.2f} of the link, whose least time is {least:.1f} ms")
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
