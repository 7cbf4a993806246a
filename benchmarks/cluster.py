"""Steps per second of asynchronous Deep MNIST over all workers: one server, one and two workers, Adam(1e-4), batch 50.

    python benchmarks/cluster.py                      # ours alone
    python benchmarks/cluster.py --peers .peers       # in turn with TensorFlow's ParameterServerStrategy

paramserver runs examples/deep_mnist.py unchanged, in processes of `psserver serve` and `psworker run --threads 1`, with
and without numba. The global step is read from outside at both ends of each window. As upper bounds, the steps of
the engine and the matrix products of a step run in as many processes without a server (`engine-alone`,
`matrix-products-alone`).
"""

import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, contextmanager, suppress

import _report

from pswire.messages import Status, StatusReport
from psworker.transport.network_transport import NetworkTransport

PROGRAM = (str(_report.ROOT / "examples" / "deep_mnist.py"), "--report", "1000000", "--steps", "1000000")
WARM_UP = _report.size(20, 1)  # steps, over all workers
WINDOW = _report.size(4.0, 0.5)  # seconds: about 100 steps
WINDOWS = _report.size(3, 1)
PATIENCE = 60.0  # seconds until the first steps are done


def ours(
    workers: int,
    *,
    numba: bool,
    options: Sequence[str] = (),
    server_options: Sequence[str] = (),
    program: Sequence[str] = PROGRAM,
) -> tuple[float, str]:
    """The median of steps per second over the windows of one run, and the tensor transport of its workers."""
    with (
        _report.kernels(numba=numba) as environment,
        _report.server_process(*server_options, environment=environment) as server,
        closing(NetworkTransport([server.address])) as transport,
        running([*options, *program], server.address, workers, environment) as processes,
    ):

        def look() -> tuple[float, StatusReport]:
            report = transport.call(0, Status(), 10.0).result()
            return time.monotonic(), report

        deadline = time.monotonic() + PATIENCE
        while look()[1].global_step < WARM_UP:
            assert time.monotonic() < deadline, f"no {WARM_UP} steps within {PATIENCE:g} s"
            watch(processes, 0.2)
        rates = []
        for _ in range(WINDOWS):
            began, before = look()
            watch(processes, WINDOW)
            ended, after = look()
            rates.append((after.global_step - before.global_step) / (ended - began))
        return statistics.median(rates), " and ".join({worker.tensor_transport for worker in after.workers})


def alone(what: str, workers: int) -> float:
    """Steps per second over concurrent processes that compute that part of a step without a server."""
    command = [sys.executable, str(_report.ROOT / "benchmarks" / "_engine_step.py"), what]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(workers)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    return sum(rate for output in outputs for _, _, rate, _ in _report.results(output))


@contextmanager
def running(arguments: Sequence[str], address: str, workers: int, environment: Mapping[str, str]):
    """Worker processes that end with the block; `arguments` are options, the program and its arguments."""
    command = [sys.executable, "-m", "psworker", "run", "--servers", address, "--threads", "1", *arguments]
    processes = [subprocess.Popen(command, env=environment) for _ in range(workers)]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def watch(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Waits; fails at once when a worker ends."""
    with suppress(subprocess.TimeoutExpired):
        code = processes[0].wait(seconds)
        raise AssertionError(f"a worker has ended with exit code {code}")
    assert all(process.poll() is None for process in processes), "a worker has ended"


def main() -> None:
    """Alternates with the peer, for one and two workers."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_report.size(2, 1))
    parser.add_argument(
        "--options", default="", help="additional options of psworker run, such as '--encoding bfloat16'"
    )
    options = parser.parse_args()
    _report.describe_machine()
    has_numba = not _report.SMALLEST and importlib.util.find_spec("numba")
    kinds = {"paramserver": False} | ({"paramserver-fast": True} if has_numba else {})
    figures, transports = _report.Figures("cluster", "steps/s"), set()
    began = time.monotonic()
    for _ in range(options.rounds):
        for workers in _report.size((1, 2), (1,)):
            figures.add(f"matrix-products-alone-{workers}p", alone("products-rate", workers))
            figures.add(f"engine-alone-{workers}p", alone("rate", workers))
            for kind, numba in kinds.items():
                rate, tensor_transport = ours(workers, numba=numba, options=options.options.split())
                figures.add(f"{kind}-{workers}w", rate)
                transports.add(tensor_transport)
            if options.peers:
                script = options.peer_scripts / "cluster_tf.py"
                for _, system, rate, _ in _report.run_peer(options.peers, "tf", script, str(workers)):
                    figures.add(system, rate)
    print(f"the workers' tensors went over {', '.join(sorted(transports))}")
    pairs = [(f"{kind}-{workers}w", f"tensorflow-ps-{workers}w") for workers in (1, 2) for kind in kinds]
    figures.report(pairs, more_is_better=True)
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
