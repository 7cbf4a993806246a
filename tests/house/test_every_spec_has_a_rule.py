"""An optimizer is whole: registered, exported, with formula and source, and a row in the rules' tests."""

import importlib
import pkgutil

import pytest

from pswire import optimizers
from pswire.optimizers.adam import MomentsSpec
from tests.unit.pswire.optimizers.rules_under_test import RULES_UNDER_TEST


def test_every_optimizer_in_the_folder_is_registered_and_exported_and_under_test():
    bases = (optimizers.UpdateSpec, optimizers.OptimizerSpec, MomentsSpec)
    modules = [
        importlib.import_module(f"pswire.optimizers.{m.name}") for m in pkgutil.iter_modules(optimizers.__path__)
    ]
    classes = {thing for module in modules for thing in vars(module).values() if isinstance(thing, type)}
    written = {thing for thing in classes if issubclass(thing, optimizers.UpdateSpec) and thing not in bases}
    assert written == set(optimizers.UpdateSpec.kinds.values())
    assert {spec.__name__ for spec in written} <= set(optimizers.__all__)
    assert (
        optimizers.UpdateSpec.kinds.keys() == optimizers.RULES.keys() == {case.spec.kind for case in RULES_UNDER_TEST}
    )


@pytest.mark.parametrize("kind", sorted(optimizers.UpdateSpec.kinds))
def test_an_optimizer_has_its_formula_and_its_source_in_its_docstring(kind):
    spec = optimizers.UpdateSpec.kinds[kind]
    assert spec.kind == kind
    assert "w <- " in spec.__doc__
    assert "Source: " in spec.__doc__
