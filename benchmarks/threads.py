"""Threads of numpy's BLAS: time and processor time of a step of small networks in one process, by number of threads.

    python benchmarks/threads.py

A network of one hidden layer on MNIST, Adam, as in the tutorial. Both times matter: OpenBLAS's threads wait for each
other actively, so on a machine with other work more of them can make a step slower, and always make it cost more.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import _report

ROUNDS = _report.size(3, 1)
#: Hidden units, examples in a batch, measured steps.
NETWORKS = [(64, 100, _report.size(200, 5)), (256, 100, _report.size(60, 5)), (1024, 256, _report.size(20, 2))]


def child(hidden: int, batch_size: int, steps: int) -> None:
    """Print the seconds and the seconds of processor time of a step."""
    import psworker as ps
    from psworker import datasets, nn, ops

    mnist = datasets.mnist()
    model = nn.Sequential(nn.Dense(784, hidden, activation=ops.relu), nn.Dense(hidden, 10))
    optimizer = ps.Adam(learning_rate=0.001)
    warm_up = steps // 5
    begin = 0.0, 0.0
    with ps.session(progress="off") as session:
        for number, batch in enumerate(session.batches(mnist.train, batch_size=batch_size, steps=warm_up + steps)):
            if number == warm_up:
                begin = time.perf_counter(), time.process_time()
            optimizer.minimize(ops.softmax_cross_entropy(model(batch.image), batch.label))
        print((time.perf_counter() - begin[0]) / steps, (time.process_time() - begin[1]) / steps)


def measure(threads: int, *sizes: int) -> tuple[float, float]:
    """The two times of a step in a process with this many threads."""
    command = [sys.executable, __file__, "--child", *map(str, sizes)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": str(threads)}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170, check=True).stdout
    seconds, processor = map(float, output.split())
    return seconds, processor


def main() -> None:
    """Run all networks with one thread and with as many as there are cores, in turn."""
    parser = _report.arguments(__doc__.partition("\n")[0])
    parser.add_argument("--child", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    _report.describe_machine()
    counts = sorted({1, len(os.sched_getaffinity(0))})
    for sizes in NETWORKS:
        found = {threads: [] for threads in counts}
        for _ in range(ROUNDS):
            for threads in counts:
                found[threads].append(measure(threads, *sizes))
        for threads, times in found.items():
            for name, values in zip(("time", "processor-time"), zip(*times, strict=True), strict=True):
                median = 1000 * statistics.median(values)
                print(f"RESULT {sizes[0]}-hidden-{name} paramserver-{threads}-threads {median:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
