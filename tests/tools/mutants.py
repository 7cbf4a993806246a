"""Mutation check: installs known faults, one at a time, and sees whether the tests named with each fail.

    python -m tests.tools.mutants [WORD ...]

With words: only mutants of which one is in the area, the title, the target or a test. `tests/mutants/` declares them
(`tests.tools.mutant_plugin`). A mutant is killed when a named test fails, and survives when all pass. Each runs in a
process of its own, two at a time.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from psworker.environment import blas_threads
from tests.tools.mutant_plugin import VARIABLE, Mutant, listed

ROOT = Path(__file__).resolve().parents[2]

#: Seconds after which a test has failed (some mutants make one wait for ever), the tests of a mutant, and all together.
PATIENCE, LIMIT, ALL = 60.0, 300.0, 1800.0

#: Mutants at a time.
JOBS = 2

KILLED, SURVIVED, SLOW, BROKEN = "killed", "SURVIVED", "TOO SLOW", "BROKEN"


def run_tests(
    tests: Iterable[str],
    mutant: Mutant | None = None,
    *,
    limit: float = LIMIT,
    patience: float = PATIENCE,
    tree: Path = ROOT,
) -> subprocess.CompletedProcess[str] | None:
    """The run of these tests in a tree of files, with a mutant if one is given; None: not in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "tests.tools.mutant_plugin"]
    chosen = "" if mutant is None else f"{mutant.area}:{mutant.title}"
    environment = os.environ | blas_threads(1) | {VARIABLE: chosen, "PYTHONPATH": str(tree)}
    command += [f"--timeout={patience}", *tests]
    try:
        return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None


def check_pass(tests: Iterable[str]) -> None:
    """Raise `RuntimeError` if the tests fail without a mutant."""
    ended = run_tests(tests, limit=ALL, patience=LIMIT)
    if ended is None or ended.returncode:
        output = "not in time" if ended is None else ended.stdout + ended.stderr
        raise RuntimeError(f"the tests fail without a mutant:\n{output[-4000:]}")


def verdict(mutant: Mutant) -> str:
    """The result of one mutant. It is broken if pytest finds no test, or the mutant cannot be installed."""
    ended = run_tests(mutant.tests, mutant)
    if ended is None:
        return SLOW
    if ended.returncode == 1 or ended.returncode < 0:  # a test has failed, or ended the process
        return KILLED
    return BROKEN if ended.returncode else SURVIVED


def main(words: Sequence[str]) -> int:
    """Prints a line for each mutant; 0 if all are killed."""
    texts = {one: " ".join([one.area, one.title, one.target, *one.tests]) for one in listed()}
    mutants = [one for one, text in texts.items() if not words or any(word in text for word in words)]
    if mutants:
        check_pass(sorted({test for one in mutants for test in one.tests}))
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(JOBS) as executor:
        for one, result in zip(mutants, executor.map(verdict, mutants), strict=True):
            counts[result] += 1
            print(f"{result:8}  {one.area}: {one.title}", flush=True)  # noqa: T201
    print(", ".join(f"{count} {result}" for result, count in counts.items()) or "no such mutant")  # noqa: T201
    return 0 if counts.keys() <= {KILLED} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
