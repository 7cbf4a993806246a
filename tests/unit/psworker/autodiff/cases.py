"""What the rows in `cases_*.py` are made of: the calls that every differentiable op is tested with.

A family of ops has a file of rows, at least one row an op, found by `test_ops.py`. To add an op, add a `rows(...)`: its
name, the same thing in plain numpy, and calls over the shapes and constants that matter for it. Arrays are
differentiated, in lists too, except those of integers and booleans; Python numbers stay what they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

SEED = 20120812
_random = np.random.default_rng(SEED)


@dataclass(frozen=True)
class Case:
    op: str
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    constants: dict[str, Any]

    def __str__(self) -> str:
        """The test's id."""

        def text(x: Any) -> str:
            if isinstance(x, list):
                return f"[{', '.join(map(text, x))}]"
            return f"{x.dtype}{x.shape}" if isinstance(x, np.ndarray) else str(x)

        constants = [f"{name}={text(value)}" for name, value in self.constants.items()]
        return f"{self.op}({', '.join([text(a) for a in self.args] + constants)})"


def call(*args: Any, **constants: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, constants


def rows(op: str, reference: Callable[..., Any], *calls: Any) -> Iterator[Case]:
    return (Case(op, reference, args, constants) for args, constants in calls)


def normal(*shape: int) -> np.ndarray:
    return _random.standard_normal(shape, dtype=np.float32).astype(np.float64)


def positive(*shape: int) -> np.ndarray:
    return np.asarray(np.abs(normal(*shape)) + 0.5)


def spaced(*shape: int) -> np.ndarray:
    """Distinct numbers in (-1, 1) in random order, none near another, 0 or 0.5: for ops with kinks and ties."""
    n = int(np.prod(shape))
    return ((_random.permutation(n) - n // 2 + 0.3) / max(n, 1)).reshape(shape)


SHAPES: list[tuple[int, ...]] = [(), (1,), (5,), (2, 3), (2, 1, 3), (0,), (0, 3)]
