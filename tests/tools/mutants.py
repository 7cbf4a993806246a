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
several lines of text. `test none` marks a mutant that no test is named for yet. A mutant is killed when a named test
fails, and survives when all pass. Works in a temporary copy of the tree: this one stays as it is.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "tests" / "mutants"

#: Seconds after which a test has failed: some mutants make one wait for ever. And those that the tests of a mutant may
#: take together, and all tests without one: more of them should not be named.
PATIENCE, LIMIT, ALL = 60, 300.0, 1200.0

KILLED, SURVIVED, SLOW, UNTESTED, STALE = "killed", "SURVIVED", "TOO SLOW", "no test", "STALE"


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and the tests that must fail with it."""

    title: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def about(self) -> str:
        """The title, the file and the tests, to be searched."""
        return "\n".join((self.title, self.file, *self.tests))

    def applied_to(self, text: str) -> str:
        """The file's text with the change. Raises `ValueError` unless the old text is there exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.title!r}: its text is in {self.file} {count} times, not once: mend its list")
        return text.replace(self.old, self.new)


def parse(text: str) -> list[Mutant]:
    """The mutants of one list. Raises `ValueError` for a paragraph that is none."""
    return [_mutant(paragraph.splitlines()) for paragraph in text.strip().split("\n\n")]


def _mutant(lines: Sequence[str]) -> Mutant:
    title = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    files = [line.removeprefix("file ") for line in lines if line.startswith("file ")]
    tests = tuple(line.removeprefix("test ") for line in lines if line.startswith("test "))
    old, new = ("\n".join(line[1:] for line in lines if line.startswith(sign)) for sign in "-+")
    known = all(line.startswith(("#", "file ", "test ", "-", "+")) for line in lines)
    if not (title and len(files) == 1 and old and tests and known) or old == new:
        raise ValueError(f"a mutant has a title, one file, an old text, another new text and its tests, not: {lines}")
    return Mutant(title, files[0], old, new, tuple(test for test in tests if test != "none"))


def listed() -> list[Mutant]:
    """All mutants, in the order of the lists."""
    return list(itertools.chain.from_iterable(parse(path.read_text()) for path in sorted(LISTS.glob("*.txt"))))


# --- running ----------------------------------------------------------------------------------------------------------


def copy_tree(to: Path) -> None:
    """Copies what git knows, and what is new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def run_tests(tree: Path, tests: Sequence[str], limit: float = LIMIT) -> subprocess.CompletedProcess[str] | None:
    """How pytest ends on these tests in `tree`; None: not in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", f"--timeout={PATIENCE}", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    try:
        return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None


def verdict(tree: Path, mutant: Mutant) -> str:
    """What becomes of one mutant; afterwards `tree` is as it was."""
    path = tree / mutant.file
    text = path.read_text()
    try:
        changed = mutant.applied_to(text)
    except ValueError:
        return STALE
    if not mutant.tests:
        return UNTESTED
    _write(path, changed)
    try:
        ended = run_tests(tree, mutant.tests)
    finally:
        _write(path, text)
    if ended is None:
        return SLOW
    return KILLED if ended.returncode else SURVIVED


def _write(path: Path, text: str) -> None:
    """Also forgets what Python has compiled: it tells sources apart by size and second, which may be the same."""
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def verdicts(mutants: Sequence[Mutant]) -> Iterator[tuple[str, Mutant]]:
    """Each mutant with what became of it. Raises `RuntimeError` if the named tests fail without any mutant."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        ended = run_tests(tree, tests, ALL) if tests else None
        if tests and (ended is None or ended.returncode):
            raise RuntimeError("the tests fail without a mutant:\n" + (ended.stdout + ended.stderr if ended else ""))
        for mutant in mutants:
            yield verdict(tree, mutant), mutant


def main(words: Sequence[str]) -> int:
    """Prints a line for each mutant; 0 if none has survived, no tests were too slow, and every list is up to date."""
    mutants = [one for one in listed() if not words or any(word in one.about for word in words)]
    counts: Counter[str] = Counter()
    for result, mutant in verdicts(mutants):
        counts[result] += 1
        print(f"{result:8}  {mutant.file}: {mutant.title}", flush=True)  # noqa: T201
    print(", ".join(f"{count} {result}" for result, count in counts.items()) or "no such mutant")  # noqa: T201
    return 1 if counts[SURVIVED] or counts[SLOW] or counts[STALE] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
