"""The mutation check tells a mutant that is killed from one that survives, and puts each file back."""

import itertools
import subprocess

import pytest

from tests.tools import mutants
from tests.tools.mutants import KILLED, SLOW, STALE, SURVIVED, Mutant, parse, verdict

LIST = """# A sum is a difference,
# and says so
file sums.py
-    total = a + b
-    return total
+    return a - b
test test_sums.py::test_a
test test_sums.py::test_b

# A sum is zero
file sums.py
-return total
+return 0
test test_sums.py
"""
CODE = "def add(a, b):\n    total = a + b\n    return total\n"
TESTS = ("test_sums.py::test_a", "test_sums.py::test_b")
OLD, NEW = "    total = a + b\n    return total", "    return a - b"
DIFFERENCE = Mutant("A sum is a difference, and says so", "sums.py", OLD, NEW, TESTS)


def test_a_list_has_the_replaced_and_the_new_text_and_the_tests_that_must_fail():
    assert parse(LIST) == [
        DIFFERENCE,
        Mutant("A sum is zero", "sums.py", "return total", "return 0", ("test_sums.py",)),
    ]
    lines = LIST.split("\n\n")[1].splitlines()
    for number, instead in itertools.product((0, 1, 2, 4), ([], ["other"])):
        with pytest.raises(ValueError, match="a mutant has a title, one file"):
            parse("\n".join([*lines[:number], *instead, *lines[number + 1 :]]))


@pytest.mark.parametrize(
    ("text", "code", "result"),
    [
        (CODE, 0, SURVIVED),
        (CODE, 1, KILLED),
        (CODE, 2, KILLED),
        (CODE, None, SLOW),
        (CODE.replace("a + b", "b + a"), 0, STALE),
        (2 * CODE, 0, STALE),
    ],
)
def test_a_mutant_is_killed_when_its_tests_fail_and_the_file_is_put_back(text, code, result, tmp_path, monkeypatch):
    def run_tests(tree, tests):
        assert (tree / "sums.py").read_text() == "def add(a, b):\n    return a - b\n"
        assert not compiled.exists(), "Python would run what was compiled before, of the same size and second"
        return None if code is None else subprocess.CompletedProcess(tests, code)

    compiled = tmp_path / "__pycache__" / "sums.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.touch()
    (tmp_path / "sums.py").write_text(text)
    monkeypatch.setattr(mutants, "run_tests", run_tests)
    assert verdict(tmp_path, DIFFERENCE) == result
    assert (tmp_path / "sums.py").read_text() == text


def test_every_list_can_be_read_and_names_files_and_tests_that_there_are():
    listed = mutants.listed()
    assert len({mutant.title for mutant in listed}) == len(listed) > 50
    for mutant in listed:
        for name in (mutant.file, *mutant.tests):
            assert (mutants.ROOT / name.partition("::")[0]).exists(), f"{mutant.title!r} names {name}"
