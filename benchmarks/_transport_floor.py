"""Lower bounds for transport.py: the parts of a step on their own. Medians in milliseconds."""

import itertools
import statistics
import time
from collections.abc import Callable

import _echo
import numpy as np
from _push_pull import ELEMENTS, MB, RATE, arrays

from pswire import optimizers
from pswire.optimizers import Step, numba_compiler, rule_for


def median_ms(step: Callable[[], object], runs: int = 30, warm_up: int = 5) -> float:
    """Median over several runs."""
    seen = []
    for _ in range(warm_up + runs):
        began = time.perf_counter()
        step()
        seen.append((time.perf_counter() - began) * 1e3)
    return statistics.median(seen[warm_up:])


def copy() -> float:
    """Copies all weights once, on one thread."""
    source, out = np.ones((2, ELEMENTS), np.float32)
    return median_ms(lambda: np.copyto(out, source))


def adam(*, numba: bool) -> float:
    """The update alone, on one thread."""
    numba_compiler.USE_NUMBA = numba
    rule = rule_for(optimizers.Adam(RATE))
    values, gradients = arrays(0.1, 0), arrays(1.0, 1)
    slots = {name: rule.slots(value) for name, value in values.items()}
    numbers = itertools.count(1)

    def update() -> None:
        step = Step(number := next(numbers), number, RATE)
        for name, value in values.items():
            rule.dense(value, slots[name], gradients[name], step)

    return median_ms(update)


def echo(design: str, nbytes: int) -> float:
    """A round trip over TCP with this many bytes each way, one direction after the other; see `_echo.DESIGNS`."""
    with _echo.echo(_echo.Task(design, nbytes)) as server:
        return median_ms(server.step, 500 if nbytes < MB else 30)
