"""Fresh mutants: changes of single operators, numbers and conditions by Cosmic Ray, a sample of those of some modules.

    make mutants-new MODULES="psserver/core/cuts/cuts.py" TESTS="tests/unit/psserver/core/test_cuts.py" COUNT=60 SEED=1

Prints each change with which all tests pass. Some are equivalent to the code; of the others, each needs a test. Without
`TESTS` those of the fixed mutants of these modules run. Works in temporary copies of the tree, two at a time.
"""

import argparse
import ast
import difflib
import queue
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tests.tools.mutant_plugin import listed
from tests.tools.mutants import JOBS, ROOT, check_pass, run_tests

_IGNORED = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "*.egg-info", "build", "datasets")


class Change(NamedTuple):
    """One change of a file, by an operator of Cosmic Ray: its name, and which place for it."""

    path: str
    line: int
    operator: str
    occurrence: int

    def code(self) -> str:
        """The changed text of the file."""
        return mutate_code((ROOT / self.path).read_text(), get_operator(self.operator)(), self.occurrence)


def changes(path: str) -> list[list[Change]]:
    """The changes of a file by their place; those of annotations are left out, since they change nothing."""
    text = (ROOT / path).read_text()
    tree, found = get_ast(text), defaultdict(list)
    annotated = _annotations(text)
    for name in operator_names():
        kind = get_operator(name)
        if kind.arguments():
            continue
        places = [place for node in ast_nodes(tree) for place in kind().mutation_positions(node)]
        for occurrence, (start, _) in enumerate(places):
            if not any(first <= start < last for first, last in annotated):
                found[start].append(Change(path, start[0], name, occurrence))
    return list(found.values())


def _annotations(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Beginnings and ends of annotations."""
    nodes = list(ast.walk(ast.parse(text)))
    found = [getattr(node, name, None) for node in nodes for name in ("annotation", "returns")]
    return [((one.lineno, one.col_offset), (one.end_lineno, one.end_col_offset)) for one in found if one is not None]


def sample(paths: list[str], count: int, seed: int) -> list[Change]:
    """At most so many changes, each of another place."""
    source = random.Random(seed)
    places = [place for path in paths for place in changes(path)]
    return [source.choice(place) for place in source.sample(places, min(count, len(places)))]


def survives(tree: Path, change: Change, tests: list[str]) -> bool:
    """Whether all tests pass with a change; afterwards `tree` is as it was."""
    path = tree / change.path
    text = path.read_text()
    try:
        _write(path, change.code())
        ended = run_tests(tests, tree=tree)
    finally:
        _write(path, text)
    return ended is not None and ended.returncode == 0


def _write(path: Path, text: str) -> None:
    """Also deletes compiled code: Python compares sources by size and second, which may be the same."""
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def _described(change: Change) -> str:
    before, after = (ROOT / change.path).read_text().splitlines(), change.code().splitlines()
    lines = [one for one in difflib.ndiff(before, after) if one[:2] in ("- ", "+ ")]
    return "\n".join([f"SURVIVED  {change.path}:{change.line}", *[f"    {one}" for one in lines]])


def main(arguments: list[str]) -> None:
    """Prints the changes that survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.new_mutants")
    parser.add_argument("modules", nargs="+", help="files, such as psserver/core/cuts/cuts.py")
    parser.add_argument(
        "--tests", action="append", default=[], help="by default those of the fixed mutants of the modules"
    )
    parser.add_argument("--count", type=int, default=40, help="changes at most [40]")
    parser.add_argument("--seed", type=int, default=0, help="of the sample [0]")
    parser.add_argument("--seconds", type=float, default=1200.0, help="after which no other one begins [1200]")
    given = parser.parse_args(arguments)
    names = [path.removesuffix(".py").replace("/", ".") for path in given.modules]
    of_modules = [one for one in listed() if one.target.partition(":")[0] in names]
    known = {test.partition("::")[0] for one in of_modules for test in one.tests}
    tests = given.tests or sorted(known)
    if not tests:
        parser.error("no fixed mutant is of these modules: name tests")
    chosen, survivors, done = sample(given.modules, given.count, given.seed), 0, 0
    with ExitStack() as stack, ThreadPoolExecutor(JOBS) as executor:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for _ in range(JOBS):
            tree = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
            shutil.copytree(ROOT, tree, ignore=_IGNORED, dirs_exist_ok=True)
            trees.put(tree)
        check_pass(tests)
        end = time.monotonic() + given.seconds

        def result(change: Change) -> bool | None:
            if time.monotonic() >= end:
                return None
            tree = trees.get()
            try:
                return survives(tree, change, tests)
            finally:
                trees.put(tree)

        for change, survived in zip(chosen, executor.map(result, chosen), strict=True):
            done += survived is not None
            if survived:
                survivors += 1
                print(_described(change), flush=True)  # noqa: T201
    print(f"seed {given.seed}: {survivors} of {done} changes survived, {len(chosen) - done} were left out")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
