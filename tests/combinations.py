"""Combinations of cases for tests: few are fast, all are run by `make test-all`."""

from collections.abc import Sequence
from itertools import chain, product
from math import prod
from typing import Any

import pytest


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
