"""The engine: forward and backward of Deep MNIST, batch 50, on one thread.

    python benchmarks/engine.py                      # ours alone
    python benchmarks/engine.py --peers .peers       # in turn with TensorFlow, PyTorch, JAX and HIPS autograd

The model is 5x5x32 convolution, pool, 5x5x64 convolution, pool, 1024 relu, dropout 0.5, 10-way softmax. For comparison:
the matrix products of direct convolutions alone, with operands in cache. Also: cost of the tape per op, and memory of a
step.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import _report

OURS = Path(__file__).with_name("_engine_step.py")
TORCH_MEMORY = Path(__file__).parent / "peers" / "engine_torch_memory.py"
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}  # read when numpy is imported


def ours(*what: str) -> list[tuple[str, str, float, str]]:
    """The RESULT lines of one measurement of paramserver."""
    done = subprocess.run(
        [sys.executable, OURS, *what],
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.PIPE,  # errors are shown
        text=True,
        timeout=170,
        check=True,
    )
    return _report.results(done.stdout)


@contextmanager
def one_core() -> Iterator[None]:
    """Pins child processes to one core: JAX has no other way to stay on one thread."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main() -> None:
    """Alternates with the peers."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_report.size(3, 1))
    options = parser.parse_args()
    _report.describe_machine()
    began = time.monotonic()
    figures = {
        "engine": _report.Figures("engine", "ms"),
        "tape": _report.Figures("tape", "us"),
        "memory": _report.Figures("memory", "MB"),
    }

    def add(lines: list[tuple[str, str, float, str]]) -> None:
        for work, system, figure, _ in lines:
            figures[work].add(system, figure)

    for round_number in range(options.rounds):
        add(ours("step"))
        add(ours("floor"))
        add(ours("step", "default-malloc"))
        if options.peers:
            for environment in ("torch", "tf"):
                add(_report.run_peer(options.peers, environment, options.peer_scripts / f"engine_{environment}.py"))
            with one_core():
                add(_report.run_peer(options.peers, "jax", options.peer_scripts / "engine_jax.py"))
            if round_number == 0:  # one second per step: one run is enough
                add(_report.run_peer(options.peers, "jax", options.peer_scripts / "engine_autograd.py"))
        add(ours("tape"))
    add(ours("memory"))
    if options.peers:
        add(_report.run_peer(options.peers, "torch", TORCH_MEMORY))

    for figure in figures.values():
        figure.report((), more_is_better=False)
    engine = figures["engine"]
    print(f"\n{'Deep MNIST, batch 50':26} {'ms':>8}   paramserver's time as a fraction")
    for system in sorted(engine.systems(), key=engine.median):
        print(f"{system:26} {engine.median(system):8.1f}   {engine.median('paramserver') / engine.median(system):5.2f}")
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
