"""Time of an update on one thread: every rule on a dense variable, and on rows of a table.

    python benchmarks/rules.py
    python benchmarks/rules.py --peers .peers       # in turn with PyTorch's fused Adam

Dense is 3,274,634 float32, as many as Deep MNIST has; rows are 4,096 random ones of a table of 1,000,000 x 64. Both in
numpy, and with numba's compiled loops where it is installed (the extra `fast`). Needs 1 GB.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import _report
import numpy as np

from pswire import optimizers
from pswire.optimizers import Rule, Step, adam, numba_compiler, rule_for
from pswire.tensors.values import IndexedSlices

PARAMETERS = _report.size(3_274_634, 10_000)
TABLE, ROWS = _report.size(((1_000_000, 64), 4_096), ((1000, 64), 64))
TORCH = Path(__file__).parent / "peers" / "rules_torch.py"

OPTIMIZERS: dict[str, optimizers.UpdateSpec] = {
    "gradient-descent": optimizers.GradientDescent(0.01),
    "momentum": optimizers.Momentum(0.01),
    "nesterov": optimizers.Momentum(0.01, nesterov=True),
    "adagrad": optimizers.Adagrad(0.01),
    "adagrad-decay": optimizers.AdagradDecay(0.01),
    "rmsprop": optimizers.RMSProp(),
    "rmsprop-centered-momentum": optimizers.RMSProp(momentum=0.9, centered=True),
    "adam": optimizers.Adam(),
    "amsgrad": optimizers.Adam(amsgrad=True),
    "adamw": optimizers.AdamW(),
    "lamb": optimizers.Lamb(),
    "ftrl": optimizers.Ftrl(0.1, l1=0.1),
}


def median_us(update: Callable[[int], None], repetitions: int) -> float:
    """The median time of an update; the first one warms up. `update` is called with its number."""
    times = []
    for number in range(1, repetitions + 2):
        start = time.perf_counter()
        update(number)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[1:])


def time_dense(rule: Rule, value: np.ndarray, gradient: np.ndarray) -> float:
    slots = rule.slots(value)
    return median_us(lambda number: rule.dense(value, slots, gradient, Step(number, number, 1e-3)), 7)


def time_rows(rule: Rule, table: np.ndarray, updates: list[IndexedSlices]) -> float:
    slots = rule.slots(table)
    for slot in slots.values():
        slot += np.float32(0)  # the first touch of a page is not a cost of the rule
    rows = [updates[number % len(updates)] for number in range(len(updates) + 2)]
    return median_us(lambda number: rule.sparse(table, slots, rows[number], Step(number, number, 1e-3)), len(updates))


def kinds() -> list[bool]:
    """Without and, if numba is installed, with compiled loops."""
    fused = numba_compiler.machine_code(adam._adam) is not None
    if not fused:
        print("numba is not installed: numpy alone")
    return [False, True] if fused else [False]


def main() -> None:
    """Measures every rule; three rounds of the peer."""
    options = _report.arguments(__doc__.splitlines()[0]).parse_args()
    _report.describe_machine()
    random = np.random.default_rng(0)
    value, gradient = random.normal(size=(2, PARAMETERS)).astype(np.float32)
    table = np.ones(TABLE, np.float32)
    updates = [
        IndexedSlices(
            random.normal(size=(ROWS, TABLE[1])).astype(np.float32),
            np.sort(random.choice(TABLE[0], ROWS, replace=False)),
            TABLE,
        )
        for _ in range(8)
    ]
    has_numba = not _report.SMALLEST and numba_compiler.machine_code(adam._adam) is not None
    numba = [False, True] if has_numba else [False]
    for name, spec in OPTIMIZERS.items():
        for work, run in (
            (f"{name}-dense", lambda rule: time_dense(rule, value.copy(), gradient)),
            (f"{name}-rows", lambda rule: time_rows(rule, table, updates)),
        ):
            figures = _report.Figures(work, "us")
            for _ in range(3 if work == "adam-dense" else 1):
                for use_numba in numba:
                    numba_compiler.USE_NUMBA = use_numba
                    rule = rule_for(spec)
                    if not use_numba or rule.loop is not None:
                        figures.add("paramserver-numba" if use_numba else "paramserver-numpy", run(rule))
                if options.peers and work == "adam-dense":
                    for _, system, median, _ in _report.run_peer(options.peers, "torch", TORCH, str(PARAMETERS)):
                        figures.add(system, median)
            others = ("paramserver-numpy", "torch-fused")
            figures.report([("paramserver-numba", other) for other in others], more_is_better=False)


if __name__ == "__main__":
    main()
