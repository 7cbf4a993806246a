"""Steps per second on a large table: 1,000,000 x 64 float32, 4,096 random rows pulled and their Adagrad update pushed.

    python benchmarks/sparse.py                      # ours alone
    python benchmarks/sparse.py --peers .peers       # in turn with TensorFlow's ParameterServerStrategy

One server process and one worker process, as `psworker local` runs them, through the public API, with shared memory,
over direct connections by TCP, and over gRPC: a step is `ops.embedding`, `gradients` of its result, and
`apply_gradients`. The gradient is that of the peer's script: row * 0.01 + 0.001. At the end the worker checks some rows
against Adagrad in float64. `-fast` uses numba, if installed; `-overlap` uses `--overlap`: the next rows are pulled
while the last push is in progress.
"""

import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _report

STEPS = _report.size(150, 3)  # per window, as in the peer's script
WARM_UP = _report.size(100, 3)
WINDOWS = _report.size(5, 1)

#: The program of the worker.
WORKER = f"""
import time
import numpy as np
import psworker as ps
from psworker import ops

random = np.random.default_rng(0)
table = ps.Table((1_000_000, 64), ps.RowConstant(0.0), name="table")
optimizer = ps.Adagrad(learning_rate=0.1, initial_accumulator=0.1)


def step(ids):
    rows = ops.embedding(table, ids)
    [gradient] = ps.gradients(rows, table, rows.value * 0.01 + 0.001)
    optimizer.apply_gradients([(gradient, table)])


def adagrad(times):
    value, accumulator = 0.0, 0.1
    for _ in range(times):
        gradient = value * 0.01 + 0.001
        accumulator += gradient**2
        value -= 0.1 * gradient / accumulator**0.5
    return value


with ps.session() as session:
    for _ in range({WARM_UP}):
        step(random.integers(10, 1_000_000, 4096))
    for _ in range({WINDOWS}):
        began = time.perf_counter()
        for _ in range({STEPS}):
            step(random.integers(10, 1_000_000, 4096))
        print("WINDOW", {STEPS} / (time.perf_counter() - began), flush=True)
    for times in range(1, 11):
        step(np.arange(times))
        session.pull()
    found = session.rows(table, np.arange(10))
    np.testing.assert_allclose(found[:, 5], [adagrad(10 - row) for row in range(10)], rtol=1e-5)
"""


def ours(system: str, way: _report.Way) -> float:
    """The median of steps per second over the windows of one run, with or without numba and overlap."""
    with tempfile.TemporaryDirectory() as folder, _report.kernels(numba="fast" in system) as environment:
        script = Path(folder) / "worker.py"
        script.write_text(WORKER)
        local = ["-m", "psworker", "local", "--workers", "1", "--threads", "1", "--progress", "off"]
        local += [*way.flags, *["--overlap"] * system.endswith("overlap")]
        output = subprocess.run(
            [sys.executable, *local, str(script)],
            capture_output=True,
            text=True,
            timeout=170,
            check=True,
            env=environment,
        ).stdout
    return statistics.median(float(line.rpartition(" ")[2]) for line in output.splitlines() if "WINDOW" in line)


def main() -> None:
    """Alternates with the peer."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_report.size(2, 1))
    options = parser.parse_args()
    _report.describe_machine()
    kernels = ["", "-fast"] if not _report.SMALLEST and importlib.util.find_spec("numba") else [""]
    systems = {
        f"paramserver-{name}{kernel}{overlap}": way
        for name, way in _report.WAYS.items()
        for kernel in kernels
        for overlap in ("", "-overlap")[: 1 + way.shared_memory]
    }
    figures = _report.Figures("sparse", "steps/s")
    began = time.monotonic()
    for _ in range(options.rounds):
        for system, way in systems.items():
            figures.add(system, ours(system, way))
        if options.peers:
            script = options.peer_scripts / "small_sparse_tf.py"
            for work, peer, median, _ in _report.run_peer(options.peers, "tf", script, "1"):
                if work == "sparse":
                    figures.add(peer, median)
    figures.report([(system, "tensorflow-ps-1w") for system in systems], more_is_better=True)
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
