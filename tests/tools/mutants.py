"""Mutation check: applies known mutants of the code, one at a time, and sees whether the tests named with each fail.

    python -m tests.tools.mutants [WORD ...]

With words: only mutants of which one is in the title, the file or a test. The lists are `tests/mutants/*.txt`, in which
a mutant is a paragraph:

    # The hyperparameter changes that a shard lists grow for ever
    file psserver/core/shard.py
    -[*self._changes, change][-MAX_LISTED:]
    +[*self._changes, change]
    test tests/unit/psserver/core/test_shard_status.py

The text after `-` must be in the file exactly once; it is replaced by the text after `+`. Several such lines are
several lines of text. A mutant is killed when a named test fails, and survives when all pass. Works in a temporary copy
of the tree: this one stays as it is.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "tests" / "mutants"

#: Seconds after which a test has failed (some mutants make one wait for ever), the tests of a mutant, and all together.
PATIENCE, LIMIT, ALL = 60, 300.0, 1200.0

KILLED, SURVIVED, SLOW, STALE = "killed", "SURVIVED", "TOO SLOW", "STALE"


class Mutant(NamedTuple):
    """One change of one file, and the tests that must fail with it."""

    title: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def parse(text: str) -> list[Mutant]:
    """The mutants of one list. Raises `ValueError` for a paragraph that is none."""
    mutants = []
    for paragraph in text.strip().split("\n\n"):
        fields = defaultdict(list)
        for line in paragraph.splitlines():
            _, kind, rest = re.split("^(#|file |test |[-+]|)", line, maxsplit=1)
            fields[kind].append(rest)
        title, old, new = " ".join(map(str.strip, fields["#"])), "\n".join(fields["-"]), "\n".join(fields["+"])
        if not (title and len(fields["file "]) == 1 and old and fields["test "]) or "" in fields or old == new:
            raise ValueError(
                f"a mutant has a title, one file, an old text, another new text and its tests, not: {paragraph}"
            )
        mutants.append(Mutant(title, fields["file "][0], old, new, tuple(fields["test "])))
    return mutants


def listed() -> list[Mutant]:
    """All mutants, in the order of the lists."""
    return [mutant for path in sorted(LISTS.glob("*.txt")) for mutant in parse(path.read_text())]


def run_tests(tree: Path, tests: Sequence[str], limit: float = LIMIT) -> subprocess.CompletedProcess[str] | None:
    """The run of these tests in `tree`; None: not in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", f"--timeout={PATIENCE}", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    try:
        return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None


def verdict(tree: Path, mutant: Mutant) -> str:
    """The result of one mutant; afterwards `tree` is as it was."""
    path = tree / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        return STALE
    try:
        _write(path, text.replace(mutant.old, mutant.new))
        ended = run_tests(tree, mutant.tests)
    finally:
        _write(path, text)
    if ended is None:
        return SLOW
    return KILLED if ended.returncode else SURVIVED


def _write(path: Path, text: str) -> None:
    """Also deletes compiled code: Python compares sources by size and second, which may be the same."""
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def main(words: Sequence[str]) -> int:
    """Prints a line for each mutant; 0 if none has survived, no tests were too slow, and every list is up to date."""
    texts = {mutant: " ".join([mutant.title, mutant.file, *mutant.tests]) for mutant in listed()}
    mutants = [mutant for mutant, text in texts.items() if not words or any(word in text for word in words)]
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT, tree, ignore=ignored, dirs_exist_ok=True)
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        ended = run_tests(tree, tests, ALL) if tests else None
        if tests and (ended is None or ended.returncode):
            raise RuntimeError("the tests fail without a mutant:\n" + (ended.stdout + ended.stderr if ended else ""))
        for mutant in mutants:
            result = verdict(tree, mutant)
            counts[result] += 1
            print(f"{result:8}  {mutant.file}: {mutant.title}", flush=True)  # noqa: T201
    print(", ".join(f"{count} {result}" for result, count in counts.items()) or "no such mutant")  # noqa: T201
    return 1 if counts[SURVIVED] or counts[SLOW] or counts[STALE] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
