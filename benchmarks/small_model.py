"""Steps per second of a small model: softmax regression on MNIST, batch 100, one server, one and two workers.

    python benchmarks/small_model.py                      # ours alone
    python benchmarks/small_model.py --peers .peers       # in turn with TensorFlow's ParameterServerStrategy

paramserver runs the whole job as `psworker local` does: batches, forward and backward, push, fresh weights; with shared
memory, over direct connections by TCP, and over gRPC.
Each worker has one BLAS thread: a second one slows this small product down.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _report

WINDOW = _report.size(1000, 100)  # steps, over all workers
WARM_UP = _report.size(1000, 10)
WINDOWS = 5

#: The program of each worker. The chief records the time at every WINDOW steps of the server.
WORKER = f"""
import time
import psworker as ps
from psworker import datasets, ops

mnist = datasets.mnist()
W = ps.Variable(ops.zeros((784, 10)), name="W")
b = ps.Variable(ops.zeros((10,)), name="b")
optimizer = ps.GradientDescent(learning_rate=0.01)
with ps.session() as session:
    last = None
    for batch in session.batches(mnist.train, batch_size=100, epochs={(WARM_UP + WINDOW * WINDOWS) // 550 + 3}):
        optimizer.minimize(ops.softmax_cross_entropy(ops.matmul(batch.image, W) + b, batch.label))
        if not session.is_chief or session.global_step < {WARM_UP}:
            continue
        now = time.perf_counter(), session.global_step
        if last is None:
            last = now
        elif now[1] - last[1] >= {WINDOW}:
            print("WINDOW", (now[1] - last[1]) / (now[0] - last[0]), flush=True)
            last = now
"""


def ours(way: _report.Way, workers: int) -> float:
    """The median of steps per second over the windows of one run."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "worker.py"
        script.write_text(WORKER)
        local = ["-m", "psworker", "local", "--workers", str(workers), "--threads", "1", "--progress", "off"]
        local += way.flags
        output = subprocess.run(
            [sys.executable, *local, str(script)], capture_output=True, text=True, timeout=170, check=True
        ).stdout
    rates = [float(line.rpartition(" ")[2]) for line in output.splitlines() if "WINDOW" in line]
    return statistics.median(rates[:WINDOWS])


def main() -> None:
    """Alternates with the peer, for one and two workers."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_report.size(2, 1))
    options = parser.parse_args()
    _report.describe_machine()
    figures = _report.Figures("small", "steps/s")
    began = time.monotonic()
    for _ in range(options.rounds):
        for workers in _report.size((1, 2), (1,)):
            for name, way in _report.WAYS.items():
                figures.add(f"paramserver-{name}-{workers}w", ours(way, workers))
            if options.peers:
                script = options.peer_scripts / "small_sparse_tf.py"
                for work, system, median, _ in _report.run_peer(options.peers, "tf", script, str(workers)):
                    if work == "small":
                        figures.add(system, median)
    pairs = [(f"paramserver-{name}-{n}w", f"tensorflow-ps-{n}w") for name in _report.WAYS for n in (1, 2)]
    figures.report(pairs, more_is_better=True)
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
