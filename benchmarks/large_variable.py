"""Registers, pushes (gradient descent) and pulls a variable of 3 GiB on one server: seconds and memory.

    python benchmarks/large_variable.py [--gib 3]

Over gRPC, where no message may exceed 2 GB, direct connections by TCP, and shared memory. The server's peak is compared
with its bound: the variable, one buffer of its size for the call in progress, 64 MB, and the process at rest with one
element. This process needs about three times the variable.
"""

import time
from contextlib import closing
from pathlib import Path

import _report
import numpy as np

from pswire import optimizers
from pswire.messages import Declaration
from pswire.tensors.values import TensorSpec
from psworker.client.client import Client
from psworker.transport.network_transport import NetworkTransport
from psworker.versions import VersionedArray

GIB = 1 << 30
MB = 1e6
RATE = 0.5
TIMEOUT = 600.0


def run(name: str, elements: int) -> None:
    """Measures one of `_report.WAYS`."""
    nbytes = 4 * elements
    system = f"paramserver-{name}"
    limit = 6 * nbytes + GIB  # half for the variable, half for the call in progress
    with (
        _report.server_process("--memory-limit", str(limit), "--shared-memory-limit", str(2 * limit)) as process,
        closing(NetworkTransport([process.address], **_report.WAYS[name]._asdict())) as transport,
    ):
        client = Client(transport, "worker", TIMEOUT)
        client.join()
        client.register([declaration("small", 1)])  # the server loads its compiled loops
        memory = _report.Memory(process.pid)

        began = time.perf_counter()
        [weights] = client.register([declaration("large", elements)])
        show("register", system, began, memory)
        weights = VersionedArray(weights.name, weights.read, np.full(elements, 1.0, np.float32))

        began = time.perf_counter()
        client.push([weights]).result()
        show("push", system, began, memory)
        del weights

        began = time.perf_counter()
        [weights] = client.pull(["large"])
        show("pull", system, began, memory)
        assert weights.read.versions == (1,)
        assert weights.array.min() == weights.array.max() == -RATE

        bound = 2 * nbytes + 64 * MB + memory.rest
        words = f"the variable has {nbytes / MB:.0f}; at rest {memory.rest / MB:.0f}; bound {bound / MB:.0f}"
        print(
            f"RESULT large-memory {system} {memory.peak() / MB:.0f} MB ({words}; over {transport.tensor_transport(0)})"
        )
        client.leave()


def declaration(name: str, elements: int) -> Declaration:
    value = np.zeros(elements, np.float32)
    return Declaration(TensorSpec.of(name, value), value, optimizers.GradientDescent(RATE))


def show(what: str, system: str, began: float, memory: _report.Memory) -> None:
    seconds, peak = time.perf_counter() - began, memory.peak() / MB
    print(f"RESULT large-{what} {system} {seconds:.2f} s (the server's peak so far: {peak:.0f} MB)", flush=True)


def main() -> None:
    """Measures all ways, as far as memory allows."""
    parser = _report.arguments(__doc__.splitlines()[0])
    gib = _report.size(3.0, 0.01)
    parser.add_argument("--gib", type=float, default=gib, help="size of the variable, in units of 1024^3 bytes")
    options = parser.parse_args()
    _report.describe_machine()
    elements = int(options.gib * GIB) // 4
    nbytes = 4 * elements
    for name in reversed(_report.WAYS):
        if available() < 6 * nbytes:
            print(f"skipped {name}: it takes {6 * nbytes / GIB:.1f} GiB, and there are {available() / GIB:.1f}")
        else:
            run(name, elements)


def available() -> int:
    """Bytes of free memory."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


if __name__ == "__main__":
    main()
