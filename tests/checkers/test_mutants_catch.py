"""Every mutant has a target and tests that there are; the check tells one that is killed from one that survives."""

import ast
import subprocess
import sys
from functools import cache

import pytest

from tests.support.combinations import together
from tests.tools import mutants
from tests.tools.mutant_plugin import Mutant, check, install, listed, scenario
from tests.tools.mutants import BROKEN, KILLED, ROOT, SLOW, SURVIVED, verdict

HERE = __name__
ALL = listed()


class Sums:
    """What the mutants of these tests replace."""

    def add(self, a, b):
        return a + b

    @classmethod
    def of(cls, *terms):
        return sum(terms)

    @property
    def zero(self):
        return 0


def double(x):
    return 2 * x


ONE = 1


@cache
def _functions(path):
    return {
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_there_are_many_mutants_of_different_titles():
    assert len({one.title for one in ALL}) == len(ALL) > 100


@together("mutant", ALL, ids=lambda one: f"{one.area}: {one.title}")
def test_a_mutant_has_a_target_with_the_parameters_of_its_replacement_and_tests_that_there_are(mutant):
    check(mutant)
    assert mutant.tests
    for test in mutant.tests:
        path, _, function = test.partition("::")
        assert not function or function.partition("[")[0] in _functions(path), test
        assert (ROOT / path).is_file(), test
        if test.startswith(scenario("").rstrip("[]")):
            assert (ROOT / path).with_name(f"{test.partition('[')[2][:-1]}.txt").is_file(), test


@pytest.mark.parametrize(
    ("target", "replacement", "error"),
    [
        ("no_module:add", lambda original: 0, ImportError),
        (f"{HERE}:subtract", lambda original: 0, AttributeError),
        (f"{HERE}:Sums.subtract", lambda original: 0, AttributeError),
        (f"{HERE}:Sums.add", lambda original, self, a: 0, TypeError),
        (f"{HERE}:Sums.add", lambda original, self, a, c: 0, TypeError),
        (f"{HERE}:Sums.add", lambda original, self, c, *rest: 0, TypeError),
        (f"{HERE}:ONE", lambda original, x: 0, TypeError),
    ],
)
def test_a_mutant_without_a_target_or_with_other_parameters_is_an_error(target, replacement, error):
    with pytest.raises(error):
        check(Mutant("", target, (), replacement))


@pytest.mark.parametrize(
    ("target", "replacement", "value", "faulty"),
    [
        ("Sums.add", lambda original, self, a, b: original(self, a, b) + 1, lambda: Sums().add(1, 2), 4),
        ("Sums.of", lambda original, cls, *terms: -original(cls, *terms), lambda: Sums.of(1, 2), -3),
        ("Sums.zero", lambda original, self: original(self) + 1, lambda: Sums().zero, 1),
        ("double", lambda original, x: x, lambda: double(3), 3),
        ("ONE", lambda original: original + 1, lambda: ONE, 2),
    ],
)
def test_a_replacement_may_call_the_original(target, replacement, value, faulty, monkeypatch):
    owner = Sums if "." in target else sys.modules[HERE]
    name = target.rpartition(".")[2]
    monkeypatch.setattr(owner, name, vars(owner)[name])
    mutant = Mutant("", f"{HERE}:{target}", (), replacement)
    check(mutant)
    install(mutant)
    assert value() == faulty


@pytest.mark.parametrize(("code", "result"), [(0, SURVIVED), (1, KILLED), (-11, KILLED), (4, BROKEN), (None, SLOW)])
def test_a_mutant_is_killed_when_a_test_fails_and_not_when_none_is_run(code, result, monkeypatch):
    ended = None if code is None else subprocess.CompletedProcess([], code)
    monkeypatch.setattr(mutants, "run_tests", lambda tests, mutant: ended)
    assert verdict(ALL[0]) == result


@pytest.mark.slow
def test_a_mutant_is_installed_in_the_process_of_its_tests():
    [mutant] = [one for one in ALL if one.target == "pswire.specs.schedules:WarmUp.at"]
    assert verdict(mutant) == KILLED
