"""The mutation check tells a mutant that is killed from one that survives, and puts each file back."""

import subprocess

import pytest

from tests.tools import mutants
from tests.tools.mutants import KILLED, SLOW, STALE, SURVIVED, UNTESTED, parse, verdict

LIST = """# A sum is a difference,
# and says so
file sums.py
-    total = a + b
-    return total
+    return a - b
test test_sums.py::test_a
test test_sums.py::test_b

# Nobody looks
file sums.py
-return total
+return 0
test none
"""
CODE = "def add(a, b):\n    total = a + b\n    return total\n"


def test_a_list_says_what_is_replaced_by_what_and_which_tests_must_fail():
    difference, untested = parse(LIST)
    assert difference.title == "A sum is a difference, and says so"
    assert difference.applied_to(CODE) == "def add(a, b):\n    return a - b\n"
    assert difference.tests == ("test_sums.py::test_a", "test_sums.py::test_b")
    assert (untested.tests, untested.applied_to(CODE)) == ((), CODE.replace("total\n", "0\n"))


@pytest.mark.parametrize("missing", ["# Nobody looks", "file sums.py", "-return total", "test none"])
def test_a_paragraph_that_lacks_something_is_no_mutant(missing):
    with pytest.raises(ValueError, match="a mutant has a title, one file"):
        parse(LIST.split("\n\n")[1].replace(f"{missing}\n", ""))


@pytest.mark.parametrize("text", [CODE.replace("a + b", "b + a"), 2 * CODE], ids=["not there", "there twice"])
def test_a_mutant_whose_text_is_not_there_once_is_out_of_date(text, tmp_path):
    (tmp_path / "sums.py").write_text(text)
    assert verdict(tmp_path, parse(LIST)[0]) == STALE
    assert (tmp_path / "sums.py").read_text() == text


@pytest.mark.parametrize(("code", "what"), [(0, SURVIVED), (1, KILLED), (2, KILLED), (None, SLOW)])
def test_a_mutant_is_killed_when_its_tests_fail_and_the_file_is_put_back(code, what, tmp_path, monkeypatch):
    def run_tests(tree, tests):
        assert (tree / "sums.py").read_text() == difference.applied_to(CODE)
        assert not compiled.exists(), "Python would run what was compiled before, of the same size and second"
        return None if code is None else subprocess.CompletedProcess(tests, code)

    difference, untested = parse(LIST)
    compiled = tmp_path / "__pycache__" / "sums.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.touch()
    (tmp_path / "sums.py").write_text(CODE)
    monkeypatch.setattr(mutants, "run_tests", run_tests)
    assert verdict(tmp_path, difference) == what
    assert (tmp_path / "sums.py").read_text() == CODE
    assert verdict(tmp_path, untested) == UNTESTED


def test_every_list_can_be_read_and_names_files_and_tests_that_there_are():
    listed = mutants.listed()
    assert len({mutant.title for mutant in listed}) == len(listed) > 50
    for mutant in listed:
        for name in (mutant.file, *mutant.tests):
            assert (mutants.ROOT / name.partition("::")[0]).exists(), f"{mutant.title!r} names {name}"
