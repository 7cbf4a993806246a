"""Training beside attacks: what a worker keeps of its steps per second, and the server of its memory limit.

    python benchmarks/under_fire.py                                  # all attacks, some three minutes
    python benchmarks/under_fire.py --attacks idle-streams resets    # some of them

One `psserver serve` with a memory limit of 400M, one worker that trains softmax regression on MNIST (batch 100), and
one attack after the other, each from a process of its own (`_attacks.py`): quiet, attack, quiet. An honest member pulls
13.1 MB beside it, and an honest newcomer asks for health, joins and asks for the status, each with a new connection.

"rate" is the worker's steps per second during the attack, relative to the mean of before and after; "memory" the
largest resident memory of the server until then, less that at rest; "newcomer" the seconds of the slowest of its calls,
and "pull" those of the pull: nan if there was no answer within 5 s. All processes share the machine: with two cores the
attacker takes its part of the processors from both.
"""

import math
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import _report
import numpy as np
from _attacks import ATTACKS, LARGE, LARGE_SIZE

from pswire import optimizers
from pswire.errors import ParamServerError
from pswire.messages import Declaration, Join, Status
from pswire.network.channel import check_health
from pswire.tensors.values import TensorSpec
from psworker.client.client import Client
from psworker.transport.network_transport import NetworkTransport

MEMORY_LIMIT = 400 << 20
PATIENCE = 5.0  # seconds that a call of an honest worker may take
READY = 8.0  # seconds that an attack may take to be under way

#: The program of the worker. It writes the number of its steps into a file that this process maps.
WORKER = """
import mmap, struct, sys
import psworker as ps
from psworker import datasets, ops

mnist = datasets.mnist()
W = ps.Variable(ops.zeros((784, 10)), name="W")
b = ps.Variable(ops.zeros((10,)), name="b")
optimizer = ps.GradientDescent(learning_rate=0.01)
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 8) as steps, ps.session() as session:
    for step, batch in enumerate(session.batches(mnist.train, batch_size=100, epochs=10_000)):
        optimizer.minimize(ops.softmax_cross_entropy(ops.matmul(batch.image, W) + b, batch.label))
        struct.pack_into("q", steps, 0, step)
"""


class Worker:
    """The training worker: a process, and the steps that it has done."""

    def __init__(self, address: str, folder: Path) -> None:
        script, counter = folder / "worker.py", folder / "steps"
        script.write_text(WORKER)
        counter.write_bytes(bytes(8))
        command = [sys.executable, "-m", "psworker", "run", "--servers", address, "--threads", "1"]
        with counter.open("r+b") as file:
            self._steps = mmap.mmap(file.fileno(), 8)
        self._process = subprocess.Popen([*command, str(script), str(counter)], stderr=subprocess.DEVNULL)

    def steps(self) -> int:
        """Steps until now."""
        (steps,) = struct.unpack("q", self._steps[:8])
        return int(steps)

    def rate(self, seconds: float) -> float:
        """Steps per second over the next `seconds`; 0 if the worker has ended."""
        began, before = time.monotonic(), self.steps()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return (self.steps() - before) / (time.monotonic() - began)

    def end(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def attack(name: str, address: str) -> Iterator[None]:
    """The attack within the block."""
    command = [sys.executable, str(Path(__file__).with_name("_attacks.py")), name, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        deadline = time.monotonic() + READY
        while not (line := process.stdout.readline()) and time.monotonic() < deadline:
            time.sleep(0.05)
        print(f"  {name}: {line.strip() or 'slow to begin'}", flush=True)
        try:
            yield
        finally:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            print(f"  {name}: {(process.stdout.read() or '').strip() or 'nothing reported'}", flush=True)


def seconds_of(call: Callable[[], object]) -> float:
    """The seconds of a call; nan if it fails."""
    began = time.monotonic()
    try:
        call()
    except ParamServerError as error:
        print(f"    {type(error).__name__}: {str(error)[:150]}", flush=True)
        return math.nan
    return time.monotonic() - began


def newcomer(address: str, name: str) -> float:
    """The seconds of the slowest call of a worker that has just come."""
    with closing(NetworkTransport([address], shared_memory=False)) as transport:
        calls = (
            lambda: check_health(address, PATIENCE),
            lambda: transport.call(0, Status(), PATIENCE).result(),
            lambda: transport.call(0, Join(worker=name), PATIENCE).result(),
        )
        return float(np.max([seconds_of(call) for call in calls]))  # nan if one is


def main() -> None:
    """One attack after the other."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=_report.size([*ATTACKS], ["status-calls"]))
    parser.add_argument("--window", type=float, default=_report.size(4.0, 0.5), help="seconds of each measurement")
    options = parser.parse_args()
    _report.describe_machine()
    began, kept = time.monotonic(), {}
    for name in options.attacks:
        kept[name] = under(name, options.window)
    for name, (rate, memory, joined, pulled) in kept.items():
        print(f"RESULT under-fire-rate {name} {rate:.2f} of-quiet")
        print(f"RESULT under-fire-memory {name} {memory / 1e6:.0f} MB (limit {MEMORY_LIMIT / 1e6:.0f} MB)")
        print(f"RESULT under-fire-newcomer {name} {joined:.2f} s")
        print(f"RESULT under-fire-pull {name} {pulled:.2f} s")
    print(f"took {time.monotonic() - began:.0f} s")


def under(name: str, window: float) -> tuple[float, float, float, float]:
    """Rate, memory, seconds of the newcomer and of the pull, under one attack on a server of its own."""
    options = ("--memory-limit", str(MEMORY_LIMIT), "--no-shared-memory")
    with (
        tempfile.TemporaryDirectory() as folder,
        _report.server_process(*options) as server,
        closing(Client(NetworkTransport([server.address]), "honest", PATIENCE)) as honest,
    ):
        honest.join()
        value = np.zeros(LARGE_SIZE, np.float32)
        honest.register([Declaration(TensorSpec.of(LARGE, value), value, optimizers.GradientDescent(1.0))])
        worker = Worker(server.address, Path(folder))
        try:
            deadline = time.monotonic() + 60
            while worker.steps() < _report.size(200, 2) and time.monotonic() < deadline:
                time.sleep(0.1)
            memory = _report.Memory(server.pid)
            before = worker.rate(window)
            with attack(name, server.address):
                during = worker.rate(window)
                joined = newcomer(server.address, "newcomer")
                pulled = seconds_of(lambda: honest.pull([LARGE]))
            time.sleep(0.5)
            after = worker.rate(window / 2)
        finally:
            worker.end()
        quiet, used = (before + after) / 2, memory.peak() - memory.rest
        print(
            f"  {name}: {before:.0f}, {during:.0f}, {after:.0f} steps/s; {used / 1e6:.0f} MB; "
            f"newcomer {joined:.2f} s, pull {pulled:.2f} s",
            flush=True,
        )
        return during / quiet if quiet else math.nan, used, joined, pulled


if __name__ == "__main__":
    main()
