"""Cases of tests, and combinations of them: few are fast, all are run by `make test-all`."""

from collections.abc import Iterable, Sequence
from itertools import chain, product
from math import prod
from typing import Any

import pytest


def few_fast(cases: Iterable[Any], fast: int = 1) -> list[Any]:
    """Parameters, the first of which are fast and the others slow. A tuple is a case of several parameters."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    assert len(values) > fast
    return [pytest.param(*each, marks=pytest.mark.slow if number >= fast else ()) for number, each in enumerate(values)]


def combinations(*axes: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Parameters: each case of the first axis with each of the next, and so on.

    Fast are as many as the longest axis has cases, in which every case of each axis is; the others are slow.
    """
    fast = {
        tuple((number + place * (number // len(axis))) % len(axis) for place, axis in enumerate(axes))
        for number in range(max(map(len, axes)))
    }
    assert len(fast) < prod(map(len, axes))
    return [
        pytest.param(
            *chain.from_iterable(axis[index] for axis, index in zip(axes, indices, strict=True)),
            marks=[] if indices in fast else pytest.mark.slow,
        )
        for indices in product(*(range(len(axis)) for axis in axes))
    ]
