"""One step of Deep MNIST between a worker and a server: push of 13.1 MB of gradients, Adam, 13.1 MB of weights back.

    python benchmarks/transport.py                      # ours alone, three minutes
    python benchmarks/transport.py --peers .peers       # in turn with PyTorch, TensorFlow, Ray and raw TCP
    python benchmarks/transport.py --profile            # time of the parts of a step, and lower bounds

The client of a worker runs in this process; the server is a process of `psserver serve`, with numpy and (`-fast`) with
numba. Each system gets a fresh server in each round. The server's memory is its peak beyond variables, slots, and the
process at rest with one variable of one element.
"""

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import _report
import _transport_floor
import _transport_parts
import numpy as np
from _push_pull import ELEMENTS, MB, RATE, arrays, declaration, empty, push_pull

from psserver.certificates import make_certificates
from pswire import optimizers
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.specs.encodings import parse_compression
from pswire.system.host import keep_memory
from psworker.client.client import Client
from psworker.client.error_feedback import GradientEncoder
from psworker.transport.network_transport import NetworkTransport
from psworker.versions import VersionedArray

STEPS = _report.size(30, 2)  # per round, as in the peers' scripts
WARM_UP = _report.size(5, 1)

#: Round trips of a message without tensors, in these configurations.
EMPTY = _report.size(500, 5)
EMPTY_CALLS = ("shared-memory", "direct", "direct-tls", "grpc", "grpc-tls")

#: The peers' scripts, by their environment, with their arguments.
PEERS = {"torch": ("transport_torch.py",), "tf": ("transport_tf.py", "1"), "ray": ("transport_ray.py",)}


@dataclass(frozen=True)
class Configuration:
    """One configuration of the transport."""

    way: str  # of `_report.WAYS`
    encoding: str = ""
    compress: str = "none"
    tls: bool = False


CONFIGURATIONS = {
    "shared-memory": Configuration("shared-memory"),
    "direct": Configuration("direct"),
    "direct-tls": Configuration("direct", tls=True),
    "direct-bfloat16": Configuration("direct", encoding="bfloat16"),
    "direct-float16": Configuration("direct", encoding="float16"),
    "direct-int8": Configuration("direct", compress="int8"),
    "direct-topk:0.01": Configuration("direct", compress="topk:0.01"),
    "grpc": Configuration("grpc"),
    "grpc-tls": Configuration("grpc", tls=True),
}

#: As `Transport.tensor_transport` names the ways.
NAMES = {"shared-memory": "shared memory", "direct": "direct", "grpc": "gRPC"}


@dataclass(frozen=True)
class Run:
    """Results of one run: ms of a step, and the server's memory in bytes, at rest and at its peak beyond that."""

    step: float
    rest: int
    over: int


@contextmanager
def connected(
    one: Configuration, environment: dict[str, str] | None = None
) -> Iterator[tuple[_report.ServerProcess, NetworkTransport]]:
    """A server, and a transport to it."""
    with tempfile.TemporaryDirectory() as folder:
        options, credentials = (), NO_CREDENTIALS
        if one.tls:
            make_certificates(Path(folder), (), 1)
            options = ("--tls-cert", f"{folder}/server.crt", "--tls-key", f"{folder}/server.key")
            credentials = Credentials(f"{folder}/ca.crt")
        with (
            _report.server_process(*options, environment=environment) as process,
            closing(NetworkTransport([process.address], credentials, **_report.WAYS[one.way]._asdict())) as transport,
        ):
            yield process, transport


def measure(one: Configuration, *, numba: bool) -> Run:
    """One server, one client, `STEPS` steps."""
    first, gradients = arrays(0.1, seed=0), arrays(1.0, seed=1)
    with (
        _report.kernels(numba=numba) as environment,
        connected(one, environment) as (process, transport),
    ):
        encoder = GradientEncoder(one.encoding, parse_compression(one.compress))
        client = Client(transport, "worker", 60.0, encoder=encoder)
        client.join()
        client.register([declaration("small", np.zeros(1, np.float32))])  # the server loads its compiled loops
        memory = _report.Memory(process.pid)
        weights = client.register([declaration(name, value) for name, value in first.items()])
        seen = []
        for _ in range(WARM_UP + STEPS):
            began = time.perf_counter()
            weights = push_pull(client, weights, gradients)
            seen.append((time.perf_counter() - began) * 1e3)
            if len(seen) == 1:
                check(one, first, gradients, weights)
        assert all(weight.read.versions == (WARM_UP + STEPS,) for weight in weights)
        assert transport.tensor_transport(0) == NAMES[one.way]
        held = sum(3 * value.nbytes for value in first.values())  # the variable and Adam's two slots
        over = memory.peak() - memory.rest - held
        client.leave()
    return Run(statistics.median(seen[WARM_UP:]), memory.rest, over)


def check(one: Configuration, first, gradients, weights: Sequence[VersionedArray]) -> None:
    """Checks the weights after Adam's first step, which moves each by the learning rate unless the gradient is tiny."""
    if one.compress != "none":
        return  # the residual has not changed the weights
    for weight in weights:
        gradient = gradients[weight.name].astype(np.float64)
        moved = RATE * gradient / (np.abs(gradient) + optimizers.Adam().epsilon)
        exact = not one.encoding
        np.testing.assert_allclose(weight.array, first[weight.name] - moved, rtol=0, atol=1e-7 if exact else 4e-3)


def empty_calls(one: Configuration) -> float:
    """Milliseconds of a round trip without tensors."""
    with connected(one) as (_, transport):
        return statistics.median(empty(transport, EMPTY))


def peers(options: argparse.Namespace, figures: _report.Figures) -> None:
    """One run of each peer, and of plain sockets."""
    for environment, (script, *args) in PEERS.items():
        for _, system, ms, _ in _report.run_peer(options.peers, environment, options.peer_scripts / script, *args):
            figures.add(system, ms)
    script = options.peer_scripts / "transport_rawtcp.py"
    for _, system, ms, _ in _report.run_script(Path(sys.executable), script):
        figures.add(system, ms)


# --- the table ------------------------------------------------------------------------------------------------------


def table(figures: _report.Figures, empties: _report.Figures, memory: dict[str, Run]) -> None:
    """Prints targets and results as Markdown."""
    seen = set(figures.systems())
    others = {one for one in seen if "paramserver" not in one and "no_apply" not in one and "raw-tcp" not in one}
    best = min(others, key=figures.median, default="")
    tensorflow = next((one for one in others if one.startswith("tensorflow")), "")
    pytorch = "torch-rpc-sockets-push_pull" if "torch-rpc-sockets-push_pull" in seen else ""
    rows = [
        (f"{path}, {kernel}", goal, f"paramserver-{ours}{fast}", f"{other}{fast}" if "paramserver" in other else other)
        for path, goals, ours, other in (
            ("same host", ("10 ms, half the best peer", "6 ms, half the best peer"), "shared-memory", best),
            ("direct", ("0.6 of TensorFlow's", "0.45 of TensorFlow's"), "direct", tensorflow),
            ("direct", ("at most PyTorch's over sockets",) * 2, "direct", pytorch),
            ("direct, TLS", ("1.3 of that without",) * 2, "direct-tls", "paramserver-direct"),
            ("direct, bfloat16", ("0.6 of float32",) * 2, "direct-bfloat16", "paramserver-direct"),
            ("gRPC", ("at most TensorFlow's",) * 2, "grpc", tensorflow),
        )
        for kernel, fast, goal in zip(("numpy", "numba"), ("", "-fast"), goals, strict=True)
    ]
    print("\n| path | target | paramserver | compared with | ratio |\n| --- | --- | --- | --- | --- |")
    for path, goal, ours, other in rows:
        if ours in seen:
            against, ratio = ("", "")
            if other:
                against = f"{other}: {figures.median(other):.1f} ms"
                ratio = f"{figures.median(ours) / figures.median(other):.2f}"
            print(f"| {path} | {goal} | {figures.median(ours):.1f} ms | {against} | {ratio} |")
    direct, grpc = (empties.median(f"paramserver-{way}") for way in ("direct", "grpc"))
    against = f"paramserver-grpc: {grpc:.2f} ms"
    print(f"| an empty round trip | a fifth of gRPC's | {direct:.2f} ms | {against} | {direct / grpc:.2f} |")
    most = max(memory, key=lambda system: memory[system].over)
    goal, ours = f"64 MB and a buffer: {64 + 4 * ELEMENTS / MB:.0f} MB", f"{memory[most].over / MB:.0f} MB ({most})"
    print(f"| memory beyond variables and slots | {goal} | {ours} | | |", flush=True)


# --- profile ----------------------------------------------------------------------------------------------------------


def profile(*, numba: bool) -> None:
    """Prints the parts of a step for each tensor transport, a measured step, and lower bounds, as Markdown."""
    ways = ("shared-memory", "grpc")
    columns = [_transport_parts.parts(NAMES[way], numba=numba) for way in ways]
    whole = [measure(Configuration(way), numba=numba).step for way in ways]
    print(f"\n| part, ms ({'numba' if numba else 'numpy'}) | {' | '.join(ways)} |\n| --- | --- | --- |")
    for part in _transport_parts.PARTS:
        print(f"| {part} | {' | '.join(f'{column[part]:.2f}' for column in columns)} |")
    rest = [step - sum(column.values()) for step, column in zip(whole, columns, strict=True)]
    print(f"| other: gRPC, waking threads | {' | '.join(f'{one:.2f}' for one in rest)} |")
    print(f"| **a step, measured** | {' | '.join(f'{one:.2f}' for one in whole)} |", flush=True)


def floor(*, numba: bool) -> None:
    """Prints lower bounds as Markdown."""
    rows = {
        "13.1 MB copied once": _transport_floor.copy(),
        "Adam alone, numpy, one thread": _transport_floor.adam(numba=False),
        **({"Adam alone, numba, one thread": _transport_floor.adam(numba=True)} if numba else {}),
        "gRPC, a message of one byte there and back": _transport_floor.echo("grpc-aio", 1),
        "gRPC, 13.1 MB there and back, bytes alone": _transport_floor.echo("grpc-aio", 4 * ELEMENTS),
        "TCP, a message of one byte there and back": _transport_floor.echo("asyncio-add-reader", 1),
        "TCP, 13.1 MB there and back": _transport_floor.echo("asyncio-add-reader", 4 * ELEMENTS),
    }
    print("\n| operation | ms |\n| --- | --- |")
    for what, ms in rows.items():
        print(f"| {what} | {ms:.2f} |", flush=True)


def main() -> None:
    """Compares with the peers, or profiles a step."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_report.size(2, 1))
    parser.add_argument("--profile", action="store_true", help="profile the parts of a step instead")
    options = parser.parse_args()
    _report.describe_machine()
    keep_memory()  # as every worker does
    numba = not _report.SMALLEST and importlib.util.find_spec("numba") is not None
    if options.profile:
        for kind in (False, True)[: 1 + numba]:
            profile(numba=kind)
        floor(numba=numba)
        return
    compare(options, numba=numba)


def compare(options: argparse.Namespace, *, numba: bool) -> None:
    """Alternates with the peers."""
    systems = {f"paramserver-{name}": (one, False) for name, one in CONFIGURATIONS.items()}
    if numba:
        systems |= {f"paramserver-{name}-fast": (one, True) for name, one in CONFIGURATIONS.items()}
    figures, empties = _report.Figures("transport", "ms"), _report.Figures("transport-empty", "ms", digits=2)
    memory: dict[str, Run] = {}
    began = time.monotonic()
    for _ in range(options.rounds):
        for system, (one, fast) in systems.items():
            run = measure(one, numba=fast)
            figures.add(system, run.step)
            memory[system] = max(run, memory.get(system, run), key=lambda one: one.over)
        for name in EMPTY_CALLS:
            empties.add(f"paramserver-{name}", empty_calls(CONFIGURATIONS[name]))
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
