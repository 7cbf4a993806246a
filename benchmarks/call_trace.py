"""The calls of one `apply_gradients`: two variables, Adam, in embedded mode.

Prints the Python functions of our packages in the order in which they are called, indented by depth, then the
number of calls, the number of files they are in, and the time of one `apply_gradients` without the trace. It
measures how much a reader must follow to understand one push from the program to the update rule and back.
"""

import statistics
import sys
import time
from collections.abc import Callable
from types import FrameType

import _report
import numpy as np

import psworker as ps

PACKAGES = tuple(f"{_report.ROOT / name}/" for name in ("pswire", "psjob", "psserver", "psworker"))
REPEATS, ROUNDS = _report.size((2000, 7), (10, 1))

_Call = tuple[int, str, str]


def traced(action: Callable[[], object]) -> list[_Call]:
    """The calls of functions of our packages during `action`, as (depth, file, function)."""
    calls: list[_Call] = []
    depth = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        if event == "call":
            file = frame.f_code.co_filename
            if file.startswith(PACKAGES):
                calls.append((depth, file.removeprefix(f"{_report.ROOT}/"), frame.f_code.co_qualname))
            depth += 1
        elif event == "return":
            depth -= 1

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def main() -> None:
    parser = _report.arguments(__doc__ or "")
    parser.add_argument("--quiet", action="store_true", help="print only the figures")
    options = parser.parse_args()
    _report.describe_machine()
    W, b = ps.Variable(np.zeros((20, 10), np.float32), name="W"), ps.Variable(np.zeros(10, np.float32), name="b")
    pairs = [(np.ones((20, 10), np.float32), W), (np.ones(10, np.float32), b)]
    optimizer = ps.Adam(0.001)
    with ps.session():
        apply = lambda: optimizer.apply_gradients(pairs)
        for _ in range(100):
            apply()
        calls = traced(apply)
        medians = [_seconds(apply) for _ in range(ROUNDS)]
    if not options.quiet:
        for depth, file, function in calls:
            print(f"{'  ' * depth}{function}  ({file})")
    files = {file for _, file, _ in calls}
    print(f"RESULT call_trace paramserver {len(calls)} calls")
    print(f"RESULT call_trace paramserver {len(files)} files")
    print(f"RESULT call_trace paramserver {statistics.median(medians) * 1e6:.1f} us")


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(REPEATS):
        action()
    return (time.perf_counter() - start) / REPEATS


if __name__ == "__main__":
    main()
