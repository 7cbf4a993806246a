"""Cases of tests, and combinations of them: few are fast, few more are slow, and all are run by `make test-all`."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, product
from math import prod
from typing import Any

import pytest


class Collected:
    """Whether pytest selects the fast cases, as `make test` does: then the others are not even collected."""

    only_fast = False


def _collected(cases: list[Any]) -> list[Any]:
    """The cases, or only the fast ones of them; pytest needs one."""
    return [case for case in cases if not case.marks] or cases[:1] if Collected.only_fast else cases


def together(
    names: str | Sequence[str], cases: Iterable[Any], ids: Callable[[Any], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`pytest.mark.parametrize` in one test, for many cases of a few milliseconds: pytest takes as long for each test.

    An error has a note with its case. All cases have the same fixtures.
    """
    names, cases = [names] if isinstance(names, str) else names, list(cases)
    assert cases

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_of_them(**fixtures: Any) -> None:
            for case in cases:
                try:
                    test(**fixtures, **dict(zip(names, [case] if len(names) == 1 else case, strict=True)))
                except Exception as error:
                    error.add_note(f"in the case {ids(case)}")
                    raise

        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in names]
        all_of_them.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return all_of_them

    return decorate


def few_fast(cases: Iterable[Any], fast: int = 1, slow: int = 1, ids: Iterable[str] | None = None) -> list[Any]:
    """Parameters: the first are fast, the next slow, the others exhaustive. A tuple is a case of several parameters."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    assert len(values) > fast
    tiers = ((), pytest.mark.slow, pytest.mark.exhaustive)
    return _collected(
        [
            pytest.param(*each, marks=tiers[(number >= fast) + (number >= fast + slow)], id=label)
            for number, (each, label) in enumerate(zip(values, ids or [None] * len(values), strict=True))
        ]
    )


def combinations(*axes: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Parameters: each case of the first axis with each of the next, and so on.

    Fast are as many as the longest axis has cases, in which every case of each axis is. Slow are as many others; the
    rest is exhaustive.
    """
    fast, slow = _diagonal(axes, 0), _diagonal(axes, 1)
    assert len(fast) < prod(map(len, axes))
    cases = [
        pytest.param(
            *chain.from_iterable(axis[index] for axis, index in zip(axes, indices, strict=True)),
            marks=[] if indices in fast else pytest.mark.slow if indices in slow else pytest.mark.exhaustive,
        )
        for indices in product(*(range(len(axis)) for axis in axes))
    ]
    return _collected(cases)


def _diagonal(axes: Sequence[Sequence[Any]], shift: int) -> set[tuple[int, ...]]:
    """Indices into the axes, with each index of each axis; another shift gives others."""
    longest = max(map(len, axes))
    return {
        tuple((number + place * (number // len(axis) + shift)) % len(axis) for place, axis in enumerate(axes))
        for number in range(longest)
    }
