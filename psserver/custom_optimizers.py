"""Loads the custom optimizers of a server (`--optimizers`): a Python file, or an entry point of an installed package.

This is code that whoever starts the server has chosen; nothing from the network comes here.
"""

import dataclasses
import importlib.util
import sys
import traceback
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import numpy as np

from pswire.errors import ConfigurationError, ParamServerError
from pswire.optimizers import CustomOptimizer, Step, rule_for

#: The group of entry points of packages, each a class or a module with classes.
GROUP = "paramserver.optimizers"


def load_optimizers(source: str) -> list[type[CustomOptimizer]]:
    """The classes of a Python file, or of the entry point of this name, after a trial of each; "": none.

    Raises `ConfigurationError` if there is no such file or entry point, if it cannot be imported, or if a class is
    wrong.
    """
    if not source:
        return []
    place = f"--optimizers {source}"
    found = _load(source, place)
    candidates = vars(found).values() if isinstance(found, ModuleType) else [found]
    classes = [one for one in candidates if isinstance(one, type) and issubclass(one, CustomOptimizer)]
    classes = [one for one in classes if one.is_registered()]
    if not classes:
        raise ConfigurationError(f"{place}: there is no optimizer: write a class of psworker.CustomOptimizer")
    for one in classes:
        try:
            _try(one)
        except (ParamServerError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{place}: class {one.__name__}: {error}") from error
    return classes


def _load(source: str, place: str) -> object:
    """The module of a file, or what an entry point stands for."""
    try:
        if source.endswith(".py"):
            return _module(Path(source))
        points = entry_points(group=GROUP)
        if source not in points.names:
            known = ", ".join(sorted(points.names)) or "none"
            raise ConfigurationError(f"neither a file FILE.py, nor an entry point of {GROUP}, which are: {known}")
        return points[source].load()
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from error
    except (Exception, SystemExit) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigurationError(
            f"{place} cannot be imported: {type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
        ) from error


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError("there is no such file")
    name = f"paramserver_optimizers_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a name that ends with .py"
    assert spec.loader is not None, "a file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and annotations refer to it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _try(cls: type[CustomOptimizer]) -> None:
    """One update of a small array, if all hyperparameters but the learning rate have defaults. Raises as it does."""
    if "__dataclass_params__" not in vars(cls):
        raise TypeError("write @dataclass(frozen=True) above it")
    if not all(isinstance(name, str) and name.isidentifier() for name in cls.slots) or isinstance(cls.slots, str):
        raise TypeError(f'slots must be a tuple of names, such as ("momentum",), got {cls.slots!r}')
    without = dataclasses.MISSING
    required = [one.name for one in dataclasses.fields(cls) if one.default is one.default_factory is without]
    if set(required) <= {"learning_rate"}:
        rule, value = rule_for(cls(**dict.fromkeys(required, 0.1))), np.ones((2, 3), np.float32)
        rule.dense(value, rule.slots(value), value / 2, Step(1, 0, 0.1))
