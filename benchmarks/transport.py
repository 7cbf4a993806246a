"""One step of Deep MNIST between a worker and a server: 13.1 MB of gradients there, Adam, 13.1 MB of weights back.

    python benchmarks/transport.py                      # ours alone, two minutes
    python benchmarks/transport.py --peers .peers       # in turn with PyTorch, TensorFlow, Ray and raw TCP
    python benchmarks/transport.py --profile            # where the time of one step goes, and the floor

The client is a worker's own, in this process; the server is a process, as `psserver serve` starts it, with numpy and
(`-fast`) with numba. Each system gets a fresh server in each round. The server's memory is what it needs at its peak
beyond its variables and slots, and beyond what it held with one variable of one element, when all was loaded.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import _report
import numpy as np

from pswire import specs
from pswire.memory import keep_memory
from pswire.messages import Declaration, Join, Pull, Sender
from pswire.values import TensorSpec
from psworker.client import Client
from psworker.placement import Whole
from psworker.transport.network import NetworkTransport

STEPS = 30  # in a round, as the peers' scripts have
WARM_UP = 5
EMPTY = 500  # round trips of a message without tensors
MB = 1e6

SHAPES = {
    "W_conv1": (5, 5, 1, 32),
    "b_conv1": (32,),
    "W_conv2": (5, 5, 32, 64),
    "b_conv2": (64,),
    "W_fc1": (3136, 1024),
    "b_fc1": (1024,),
    "W_fc2": (1024, 10),
    "b_fc2": (10,),
}
RATE = 1e-4

#: The peers' scripts, by their environment, with their arguments.
PEERS = {"torch": ("transport_torch.py",), "tf": ("transport_tf.py", "1"), "ray": ("transport_ray.py",)}


@dataclass(frozen=True)
class Way:
    """How gradients and weights travel."""

    lane: str  # as `Transport.lane` says
    wire: str = "float32"
    compress: str = "none"


WAYS = {
    "shared-memory": Way("shared memory"),
    "grpc": Way("gRPC"),
    "grpc-bfloat16": Way("gRPC", wire="bfloat16"),
    "grpc-float16": Way("gRPC", wire="float16"),
    "grpc-int8": Way("gRPC", compress="int8"),
    "grpc-topk:0.01": Way("gRPC", compress="topk:0.01"),
}


@dataclass(frozen=True)
class Run:
    """What one run has shown: ms of a step, and the server's memory in bytes, at rest and at its peak beyond that."""

    step: float
    rest: int
    over: int


def connect(address: str, way: Way) -> Client:
    """A worker's client, which has joined."""
    from psworker.feedback import Packer, parse_compression

    transport = NetworkTransport([address], shared_memory=way.lane == "shared memory")
    client = Client(transport, "worker", 60.0, packer=Packer(way.wire, parse_compression(way.compress)))
    client.join()
    if transport.lane(0) != way.lane:
        raise SystemExit(f"the server at {address} is reached over {transport.lane(0)}, not over {way.lane}")
    return client


def measure(way: Way, *, numba: bool) -> Run:
    """One server, one client, `STEPS` steps."""
    random = np.random.default_rng(0)
    first = {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in SHAPES.items()}
    gradients = {name: random.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
    with (
        _report.kernels(numba=numba) as environment,
        _report.server_process(environment=environment) as process,
        closing(connect(process.address, way)) as client,
    ):
        client.register([declaration("small", np.zeros(1, np.float32))])  # the server loads its kernels
        memory = _report.Memory(process.pid)
        weights = client.register([declaration(name, value) for name, value in first.items()])
        seen = []
        for _ in range(WARM_UP + STEPS):
            began = time.perf_counter()
            weights = push_pull(client, weights, gradients)
            seen.append((time.perf_counter() - began) * 1e3)
            if len(seen) == 1:
                check(way, first, gradients, weights)
        assert all(weight.versions == (WARM_UP + STEPS,) for weight in weights)
        held = sum(3 * value.nbytes for value in first.values())  # the variable and Adam's two slots
        over = memory.peak() - memory.rest - held
        client.leave()
    return Run(statistics.median(seen[WARM_UP:]), memory.rest, over)


def declaration(name: str, value: np.ndarray) -> Declaration:
    return Declaration(TensorSpec.of(name, value), value, specs.Adam(RATE))


def push_pull(client: Client, weights: Sequence[Whole], gradients: dict[str, np.ndarray]) -> Sequence[Whole]:
    """One step: all gradients there, all fresh weights back."""
    pushed = [Whole(weight.name, weight.versions, gradients[weight.name]) for weight in weights]
    return client.push(pushed, None, list(gradients)).wait().values


def check(way: Way, first, gradients, weights: Sequence[Whole]) -> None:
    """That these are the weights after Adam's first step, which moves each by its rate unless the gradient is tiny."""
    if way.compress != "none":
        return  # what was not sent has moved nothing
    for weight in weights:
        gradient = gradients[weight.name].astype(np.float64)
        moved = RATE * gradient / (np.abs(gradient) + specs.Adam().epsilon)
        exact = way.wire == "float32"
        np.testing.assert_allclose(weight.array, first[weight.name] - moved, rtol=0, atol=1e-7 if exact else 4e-3)


def empty() -> float:
    """Milliseconds of a round trip without tensors, on a stream."""
    with _report.server() as address, closing(NetworkTransport([address])) as transport:
        sender = Sender("worker", transport.call(0, Join("worker"), 30.0).result().incarnation)
        seen = []
        for _ in range(EMPTY):
            began = time.perf_counter()
            transport.call(0, Pull(sender, ()), 30.0).result()
            seen.append((time.perf_counter() - began) * 1e3)
    return statistics.median(seen)


def peers(options: argparse.Namespace, figures: _report.Figures) -> None:
    """One run of each peer, and of the floor for sockets."""
    for environment, (script, *args) in PEERS.items():
        for _, system, ms, _ in _report.run_peer(options.peers, environment, options.peer_scripts / script, *args):
            figures.add(system, ms)
    script = options.peer_scripts / "transport_rawtcp.py"
    for _, system, ms, _ in _report.run_script(Path(sys.executable), script):
        figures.add(system, ms)


# --- the table ------------------------------------------------------------------------------------------------------


def table(figures: _report.Figures, empties: _report.Figures, memory: dict[str, Run]) -> None:
    """Prints the goals and what there is, as Markdown."""
    seen = set(figures.systems())
    others = {one for one in seen if "paramserver" not in one and "no_apply" not in one and "raw-tcp" not in one}
    best = min(others, key=figures.median, default="")
    tensorflow = next((one for one in others if one.startswith("tensorflow")), "")
    rows = [
        ("same host, numpy", "10 ms, half the best peer", "paramserver-shared-memory", best),
        ("same host, numba", "6 ms, half the best peer", "paramserver-shared-memory-fast", best),
        ("gRPC, float32, numpy", "at most TensorFlow's", "paramserver-grpc", tensorflow),
        ("gRPC, float32, numba", "at most TensorFlow's", "paramserver-grpc-fast", tensorflow),
        ("gRPC, bfloat16, numpy", "0.6 of float32", "paramserver-grpc-bfloat16", "paramserver-grpc"),
        ("gRPC, bfloat16, numba", "0.6 of float32", "paramserver-grpc-bfloat16-fast", "paramserver-grpc-fast"),
    ]
    print("\n| path | goal | ours | against | ratio |\n| --- | --- | --- | --- | --- |")
    for path, goal, ours, other in rows:
        if ours in seen:
            against, ratio = ("", "")
            if other:
                against = f"{other}: {figures.median(other):.1f} ms"
                ratio = f"{figures.median(ours) / figures.median(other):.2f}"
            print(f"| {path} | {goal} | {figures.median(ours):.1f} ms | {against} | {ratio} |")
    print(f"| an empty round trip | 0.6 ms | {empties.median('paramserver-empty'):.2f} ms | | |")
    most = max(memory, key=lambda system: memory[system].over)
    buffer = sum(4 * np.prod(shape) for shape in SHAPES.values())
    goal, ours = f"64 MB and a buffer: {64 + buffer / MB:.0f} MB", f"{memory[most].over / MB:.0f} MB ({most})"
    print(f"| memory beyond variables and slots | {goal} | {ours} | | |", flush=True)


def main() -> None:
    """Runs ours and the peers in turn."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="show where the time of one step goes instead")
    options = parser.parse_args()
    _report.describe_machine()
    keep_memory()  # as every worker does
    systems = {f"paramserver-{name}": (way, False) for name, way in WAYS.items()}
    if importlib.util.find_spec("numba"):
        systems |= {f"paramserver-{name}-fast": (way, True) for name, way in WAYS.items()}
    figures, empties = _report.Figures("transport", "ms"), _report.Figures("transport", "ms", digits=2)
    memory: dict[str, Run] = {}
    began = time.monotonic()
    for _ in range(options.rounds):
        for system, (way, numba) in systems.items():
            run = measure(way, numba=numba)
            figures.add(system, run.step)
            memory[system] = max(run, memory.get(system, run), key=lambda one: one.over)
        empties.add("paramserver-empty", empty())
        if options.peers:
            peers(options, figures)
    figures.report((), more_is_better=False)
    empties.report((), more_is_better=False)
    for system, run in memory.items():
        print(f"RESULT transport-memory {system} {run.over / MB:.1f} MB (and {run.rest / MB:.1f} at rest)")
    table(figures, empties, memory)
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
