"""Every optimizer is registered, exported, tested and documented."""

import importlib
import pkgutil
from pathlib import Path

import pytest

import psworker as ps
from pswire import optimizers
from pswire.optimizers.adam import MomentsSpec
from tests.unit.pswire.optimizers.rules_under_test import RULES_UNDER_TEST

SPECS = optimizers.UpdateSpec.kinds


def test_every_optimizer_in_the_folder_is_registered_exported_and_tested():
    bases = (optimizers.UpdateSpec, optimizers.OptimizerSpec, MomentsSpec)
    names = [module.name for module in pkgutil.iter_modules(optimizers.__path__, "pswire.optimizers.")]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    specs = {one for one in values if isinstance(one, type) and issubclass(one, optimizers.UpdateSpec)} - set(bases)
    assert specs == set(SPECS.values())
    assert {spec.__name__ for spec in specs} <= set(optimizers.__all__)
    assert SPECS.keys() == optimizers.RULES.keys() == {case.spec.kind for case in RULES_UNDER_TEST}


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_the_docstring_of_an_optimizer_has_its_formula_and_source(kind):
    assert SPECS[kind].kind == kind
    assert "w <- " in SPECS[kind].__doc__
    assert "Source: " in SPECS[kind].__doc__


def test_every_optimizer_has_a_class_for_programs_and_is_in_the_guide():
    guide = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text()
    names = [spec.__name__ for spec in SPECS.values() if issubclass(spec, optimizers.OptimizerSpec)]
    assert len(names) > 8
    for name in names:
        assert issubclass(getattr(ps, name), ps.Optimizer)
        assert f"`ps.{name}" in guide or f"`{name}" in guide, f"docs/models.md does not describe {name}"
