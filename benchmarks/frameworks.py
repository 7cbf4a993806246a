"""PyTorch programs on paramserver, DistributedDataParallel, PyTorch's RPC and TensorFlow: two workers, one server.

    python benchmarks/frameworks.py                   # ours alone
    python benchmarks/frameworks.py --peers .peers    # in turn with the peers

Deep MNIST (batch 50) and a small transformer (8 texts of 64 bytes), Adam, random data, one thread a process. Steps per
second are those of both workers: DistributedDataParallel makes as many in each of its steps as it has workers. Three
situations: equal workers; one that runs a quarter of the time (SIGSTOP for 75 of every 100 ms), as on a slower or busy
machine; and one that is killed, whose figure is the rate of the other from 5 seconds later on.
"""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import _report
import numpy as np

WORKERS = 2
MODELS = _report.size(("deep-mnist", "transformer"), ("transformer",))
WINDOW = _report.size(8.0, 0.5)  # seconds
AFTER_KILL = _report.size(5.0, 0.2)
PATIENCE = 120.0  # seconds until all workers train
PEERS = _report.ROOT / "benchmarks" / "peers"


class Run:
    """The processes of one system; `counts` are the steps of each worker, `processes` the workers."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "counts"
        np.zeros(WORKERS, np.int64).tofile(self.path)
        self.counts = np.memmap(self.path, np.int64, "r")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.until_end = ExitStack()
        self.log = (folder / "log").open("w+")

    def start(self, command: list[object], environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts one process; what it writes goes to the log."""
        one = subprocess.Popen(
            [str(part) for part in command],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        self.processes.append(one)
        return one

    def rate(self) -> float:
        """Steps per second of all workers, over one window."""
        began, before = time.monotonic(), self.counts.sum()
        time.sleep(WINDOW)
        return float(self.counts.sum() - before) / (time.monotonic() - began)

    def wait_until_trained(self, steps: int) -> None:
        """Returns when all together have made so many steps; fails when they do not."""
        deadline = time.monotonic() + PATIENCE
        while self.counts.sum() < steps:
            ended = [one.args for one in self.processes if one.poll() is not None]
            if ended or time.monotonic() > deadline:
                self.log.seek(0)
                raise RuntimeError(f"no {steps} steps; ended: {ended}: {self.log.read()[-1500:]}")
            time.sleep(0.05)

    def end(self) -> None:
        """Kills what is left."""
        for one in self.processes:
            one.kill()
        for one in self.processes:
            one.wait(30)
        self.until_end.close()
        self.log.close()


def free_addresses(count: int) -> list[str]:
    """Addresses with ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def paramserver(run: Run, model: str, _: Path | None) -> list[subprocess.Popen[bytes]]:
    """Our workers, asynchronous, with a server."""
    address = run.until_end.enter_context(_report.server_process()).address
    script = _report.ROOT / "benchmarks" / "_frameworks_worker.py"
    command = [sys.executable, "-m", "psworker", "run", "--servers", address, "--threads", "1", script]
    return [run.start([*command, "ours", model, worker, run.path, "-"]) for worker in range(WORKERS)]


def _torch(run: Run, model: str, peers: Path | None, system: str, first: int) -> list[subprocess.Popen[bytes]]:
    assert peers is not None
    [address] = free_addresses(1)
    command = [peers / "torch" / "bin" / "python", PEERS / "frameworks_torch.py", system, model]
    started = [run.start([*command, worker, run.path, address]) for worker in range(first, WORKERS)]
    return started[-WORKERS:]


def ddp(run: Run, model: str, peers: Path | None) -> list[subprocess.Popen[bytes]]:
    """DistributedDataParallel over gloo, synchronous."""
    return _torch(run, model, peers, "ddp", 0)


def rpc(run: Run, model: str, peers: Path | None) -> list[subprocess.Popen[bytes]]:
    """A parameter server by PyTorch's RPC, asynchronous."""
    return _torch(run, model, peers, "rpc", -1)


def tensorflow(run: Run, model: str, peers: Path | None) -> list[subprocess.Popen[bytes]]:
    """TensorFlow's ParameterServerStrategy, asynchronous."""
    assert peers is not None
    addresses = ",".join(free_addresses(2 + WORKERS))
    command = [peers / "tf" / "bin" / "python", PEERS / "frameworks_tf.py"]
    run.start([*command, "ps", model, 0, run.path, addresses])
    workers = [run.start([*command, "worker", model, worker, run.path, addresses]) for worker in range(WORKERS)]
    run.start([*command, "chief", model, 0, run.path, addresses])
    return workers


@contextmanager
def a_quarter_of_the_time(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The process runs for 25 of every 100 ms within the block."""
    over = threading.Event()

    def alternate() -> None:
        while not over.is_set():
            process.send_signal(signal.SIGSTOP)
            over.wait(0.075)
            process.send_signal(signal.SIGCONT)
            over.wait(0.025)

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


System = Callable[[Run, str, Path | None], list[subprocess.Popen[bytes]]]


def measure(name: str, system: System, model: str, peers: Path | None, figures: _report.Figures) -> None:
    """One run of a system in the three situations, one after another."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        try:
            workers = system(run, model, peers)
            run.wait_until_trained(_report.size(30, 2))
            figures.add(f"{name}-{model}-equal", run.rate())
            with a_quarter_of_the_time(workers[-1]):
                time.sleep(_report.size(2.0, 0.0))
                figures.add(f"{name}-{model}-slow", run.rate())
            time.sleep(_report.size(1.0, 0.0))
            workers[-1].kill()
            time.sleep(AFTER_KILL)
            figures.add(f"{name}-{model}-killed", run.rate())
        except RuntimeError as error:
            print(f"{name}: {error}", flush=True)
        finally:
            run.end()


def main() -> None:
    """Alternates between the systems."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_report.size(3, 1))
    parser.add_argument("--models", default=",".join(MODELS), help="deep-mnist, transformer or both")
    options = parser.parse_args()
    _report.describe_machine()
    systems: dict[str, System] = {}
    if importlib.util.find_spec("torch"):
        systems["paramserver"] = paramserver
    else:
        print("paramserver: PyTorch is not installed here: pip install 'paramserver[torch]'")
    peers = options.peers.absolute() if options.peers else None
    if peers and (peers / "torch").exists():
        systems |= {"ddp": ddp, "torch-rpc": rpc}
    if peers and (peers / "tf").exists():
        systems["tensorflow-ps"] = tensorflow
    figures = _report.Figures("frameworks", "steps/s")
    for _ in range(options.rounds):
        for model in options.models.split(","):
            for name, system in systems.items():
                measure(name, system, model, peers, figures)
    names = [name.removeprefix("paramserver-") for name in figures.systems() if name.startswith("paramserver-")]
    pairs = [(f"paramserver-{one}", f"{peer}-{one}") for peer in ("ddp", "torch-rpc", "tensorflow-ps") for one in names]
    pairs = [pair for pair in pairs if pair[1] in figures.systems() and figures.median(pair[1])]
    figures.report(pairs, more_is_better=True)


if __name__ == "__main__":
    main()
