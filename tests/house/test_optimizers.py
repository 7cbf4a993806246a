"""Every optimizer is registered, exported, tested and documented."""

import importlib
import pkgutil

import pytest

from pswire import optimizers
from pswire.optimizers.adam import MomentsSpec
from tests.unit.pswire.optimizers.rules_under_test import RULES_UNDER_TEST


def test_every_optimizer_in_the_folder_is_registered_exported_and_tested():
    bases = (optimizers.UpdateSpec, optimizers.OptimizerSpec, MomentsSpec)
    modules = [
        importlib.import_module(f"pswire.optimizers.{m.name}") for m in pkgutil.iter_modules(optimizers.__path__)
    ]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    specs = {one for one in classes if issubclass(one, optimizers.UpdateSpec) and one not in bases}
    assert specs == set(optimizers.UPDATES.values())
    assert {spec.__name__ for spec in specs} <= set(optimizers.__all__)
    assert optimizers.UPDATES.keys() == optimizers.RULES.keys() == {case.spec.kind for case in RULES_UNDER_TEST}


@pytest.mark.parametrize("kind", sorted(optimizers.UPDATES))
def test_the_docstring_of_an_optimizer_has_its_formula_and_source(kind):
    spec = optimizers.UPDATES[kind]
    assert spec.kind == kind
    assert "w <- " in spec.__doc__
    assert "Source: " in spec.__doc__
