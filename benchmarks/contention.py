"""Latency of a small pull beside large updates: 31 KB pulled while another worker pushes 13.1 MB to Adam.

    python benchmarks/contention.py

One server process, one process that pushes, and this one, which pulls a different variable. No lock of the store is
involved: the pull waits for the processor, the interpreter and the network thread.
"""

import multiprocessing
import statistics
import time
from contextlib import closing

import _report
import numpy as np

from pswire import optimizers
from pswire.messages import Declaration, Gradient, Join, Pull, Push, Register, Sender
from pswire.tensors.values import TensorSpec
from psworker.transport.network_transport import NetworkTransport

SMALL = np.zeros((784, 10), np.float32)
LARGE = np.zeros(3_274_634, np.float32)  # as many as Deep MNIST has
PULLS = _report.size(500, 5)


def join(transport, worker: str, name: str, value) -> Sender:
    """Joins the shard and registers the variable."""
    sender = Sender(worker, transport.call(0, Join(worker=worker), 30).result().incarnation)
    declaration = Declaration(TensorSpec.of(name, value), value, optimizers.Adam())
    transport.call(0, Register(sender=sender, declarations=(declaration,)), 30).result()
    return sender


def push(address: str, ready, stop, count) -> None:
    """Pushes the large gradient and pulls the large variable until it is stopped."""
    with closing(NetworkTransport([address])) as transport:
        sender = join(transport, "large", "large", LARGE)
        sequence = 0
        while not stop.is_set():
            sequence += 1
            gradient = Gradient("large", sequence - 1, LARGE)
            transport.call(
                0, Push(sender=sender, sequence=sequence, gradients=(gradient,), loss=None, pull=("large",)), 30
            ).result()
            count.value = sequence
            ready.set()


def pulls(transport, sender: Sender) -> list[float]:
    """Milliseconds of each small pull."""
    seen = []
    for _ in range(PULLS):
        began = time.perf_counter()
        transport.call(0, Pull(sender=sender, names=("small",)), 30).result()
        seen.append((time.perf_counter() - began) * 1e3)
    return seen


def show(system: str, seen: list[float]) -> None:
    """The median as a RESULT line, and the tail."""
    ninety_five, ninety_nine = np.percentile(seen, [95, 99])
    tail = f"(p95 {ninety_five:.2f}, p99 {ninety_nine:.2f}, {len(seen)} pulls)"
    print(f"RESULT contention {system} {statistics.median(seen):.2f} ms {tail}", flush=True)


def main() -> None:
    """Pulls alone, then beside the pushes."""
    _report.arguments(__doc__.splitlines()[0]).parse_args()
    _report.describe_machine()
    spawn = multiprocessing.get_context("spawn")
    with _report.server() as address, closing(NetworkTransport([address])) as transport:
        sender = join(transport, "small", "small", SMALL)
        pulls(transport, sender)
        show("paramserver-alone", pulls(transport, sender))
        ready, stop, count = spawn.Event(), spawn.Event(), spawn.Value("q", 0)
        pusher = spawn.Process(target=push, args=(address, ready, stop, count))
        pusher.start()
        ready.wait(30)
        before, began = count.value, time.perf_counter()
        seen = pulls(transport, sender)
        rate = (count.value - before) / (time.perf_counter() - began)
        stop.set()
        pusher.join()
        show("paramserver-beside-pushes", seen)
        print(f"RESULT contention paramserver-pushes {rate:.1f} pushes/s of 13.1 MB, beside the pulls")


if __name__ == "__main__":
    main()
