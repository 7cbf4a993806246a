"""An update rule is whole: a spec with formula and source, a rule in a file of its name, a row in the rules' tests."""

import importlib
import pkgutil
import runpy

import pytest

from psserver.core import rules
from pswire import optimizers
from tests.unit.pswire.optimizers.rules_under_test import RULES_UNDER_TEST

KINDS = sorted(optimizers.UPDATES)


def test_every_spec_in_the_files_is_in_the_table():
    bases = (optimizers.UpdateSpec, optimizers.OptimizerSpec, optimizers.MomentsSpec)
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.iter_modules(optimizers.__path__, "pswire.optimizers.")
    ]
    classes = {thing for module in [optimizers, *modules] for thing in vars(module).values() if isinstance(thing, type)}
    written = {thing for thing in classes if issubclass(thing, optimizers.UpdateSpec) and thing not in bases}
    assert {spec.__name__ for spec in written} <= set(optimizers.__all__), (
        "a spec's name is missing in pswire.optimizers"
    )
    assert written == set(optimizers.UPDATES.values())
    assert [optimizers.UPDATES[kind].kind for kind in KINDS] == KINDS


def test_every_spec_has_a_rule_and_every_rule_a_spec():
    assert sorted(rules.RULES) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_stands_in_the_file_named_by_its_kind(kind):
    assert rules.RULES[kind].__module__ == f"psserver.core.rules.{kind}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_says_its_formula_and_its_source(kind):
    spec = optimizers.UPDATES[kind]
    text = spec.__doc__
    assert "w <- " in text
    assert "Source: " in text


def test_every_spec_is_compared_with_its_formula_in_the_rules_tests():
    assert sorted({case.spec.kind for case in RULES_UNDER_TEST}) == KINDS


def test_a_spec_without_a_rule_stops_the_import_and_is_named(monkeypatch):
    monkeypatch.setitem(optimizers.UPDATES, "lonely", optimizers.UpdateSpec)
    with pytest.raises(ImportError, match="every spec needs a rule and every rule a spec, but lonely"):
        runpy.run_path(rules.__file__)
