"""Mutants: known faults of the code, declared in `tests/mutants/`, and the pytest plugin that installs one of them.

    @mutant(
        "A retried push is applied twice: no answer is recorded",
        "psserver.core.members.membership:Membership.record",
        "tests/scenarios/test_scenarios.py",
    )
    def _(original, self, member, sequence, answer):
        pass

The function takes the place of the target, whose parameters it has after `original`, which it may call; of a property,
the getter's; `without` declares a mutant whose target does nothing. For a target that is no function, the function has
`original` alone and returns another value. The tests must fail with it: files, or tests of them, which run in the
process of pytest, since no other one has the mutant.

`tests.tools.mutants` runs them. As a plugin (`-p tests.tools.mutant_plugin`) this installs the mutant of `$MUTANT`, an
area and a title: `core:A retried push is applied twice`.
"""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

AREAS = Path(__file__).resolve().parents[1] / "mutants"

#: The mutant to install.
VARIABLE = "MUTANT"

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Mutant(NamedTuple):
    """What takes the place of a target, "module:qualified.name", and the tests that must fail with it."""

    title: str
    target: str
    tests: tuple[str, ...]
    replacement: Callable[..., Any]

    @property
    def area(self) -> str:
        """The file of `tests/mutants/` that declares it."""
        return self.replacement.__module__.rpartition(".")[2]


_declared: list[Mutant] = []


def mutant(title: str, target: str, *tests: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a mutant by the function that replaces its target."""

    def declare(replacement: Callable[..., Any]) -> Callable[..., Any]:
        _declared.append(Mutant(title, target, tests, replacement))
        return replacement

    return declare


def without(title: str, target: str, *tests: str) -> None:
    """Declare a mutant whose target does nothing."""

    def nothing(original: object, *args: object, **named: object) -> None:
        pass

    nothing.__module__ = sys._getframe(1).f_globals["__name__"]
    mutant(title, target, *tests)(nothing)


def scenario(name: str) -> str:
    """The test of one scenario of the shard."""
    return f"tests/scenarios/test_scenarios.py::test_the_shard_answers_as_the_scenario_says[{name}]"


def listed() -> list[Mutant]:
    """All mutants, area by area."""
    return [one for path in sorted(AREAS.glob("*.py")) for one in of_area(path.stem)]


def of_area(area: str) -> list[Mutant]:
    """The mutants of one area."""
    importlib.import_module(f"tests.mutants.{area}")
    return [one for one in _declared if one.area == area]


def resolve(target: str) -> tuple[Any, str, Any]:
    """The module or class of a target, its name there, and what it is. Raises `ImportError` or `AttributeError`."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for one in classes:
        owner = getattr(owner, one)
    if name not in vars(owner):
        raise AttributeError(f"{target}: {owner.__name__} defines no {name!r}")
    return owner, name, vars(owner)[name]


def check(mutant: Mutant) -> None:
    """Raise an error if there is no such target, or its parameters are not those of the replacement."""
    _, _, original = resolve(mutant.target)
    function = _function(original)
    given = [*inspect.signature(mutant.replacement).parameters.values()][1:]
    known = [] if function is None else [*inspect.signature(function).parameters]
    named = [one.name for one in given if one.kind not in _VARIADIC]
    if named != (known[: len(named)] if len(named) < len(given) else known):
        raise TypeError(f"{mutant.target} has the parameters {known}, and its replacement {named}")


def install(mutant: Mutant) -> None:
    """Put the replacement in the place of the target, also in modules that have imported a function by its name."""
    owner, name, original = resolve(mutant.target)
    faulty = _faulty(original, mutant.replacement)
    setattr(owner, name, faulty)
    if isinstance(owner, ModuleType) and getattr(original, "__module__", None) == owner.__name__:
        for module in [one for one in sys.modules.values() if getattr(one, "__dict__", {}).get(name) is original]:
            setattr(module, name, faulty)


def _function(original: Any) -> Callable[..., Any] | None:
    """The function that a target is, or is made of."""
    if isinstance(original, property):
        return original.fget
    if isinstance(original, classmethod | staticmethod):
        return original.__func__
    return original if callable(original) and not isinstance(original, type) else None


def _faulty(original: Any, replacement: Callable[..., Any]) -> Any:
    function = _function(original)
    if function is None:
        return replacement(original)

    @functools.wraps(function)
    def faulty(*args: Any, **named: Any) -> Any:
        return replacement(function, *args, **named)

    return type(original)(faulty) if isinstance(original, property | classmethod | staticmethod) else faulty


def pytest_configure() -> None:
    """Install the mutant of the environment, if there is one."""
    area, _, title = os.environ.get(VARIABLE, "").partition(":")
    if area:
        try:
            [chosen] = [one for one in of_area(area) if one.title == title]
            install(chosen)
        except Exception as error:
            raise pytest.UsageError(f"the mutant {area}:{title} cannot be installed: {error!r}") from error
