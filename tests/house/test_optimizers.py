"""Every optimizer is registered, exported, tested and documented."""

import importlib
import pkgutil

import pytest

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
