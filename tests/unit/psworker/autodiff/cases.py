"""Builders of the rows in `cases_*.py`: the calls with which `test_ops.py` tests every differentiable op.

To add an op, add `rows(...)` to the file of its family: its name, a reference in plain numpy, and calls over the shapes
and constants that matter. Positional arrays are tensors, in lists too; those of floating point are differentiated.
Python numbers and keyword arguments are passed on.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

_random = np.random.default_rng(20120812)


class Case(NamedTuple):
    op: str
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    constants: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(described, [*self.args, *self.constants.items()]))})"


def described(x: Any) -> str:
    if isinstance(x, (list, tuple)):
        return f"[{', '.join(map(described, x))}]"
    return f"{x.dtype}{x.shape}" if isinstance(x, np.ndarray) else str(x)


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


def wide(*shape: int) -> np.ndarray:
    """Distinct numbers in (-3, 3) in random order, none at 0, 1 or -1."""
    return np.asarray(3 * spaced(*shape))


def unary(operand: Callable[..., np.ndarray]) -> list[Any]:
    return [call(operand(*shape)) for shape in ((), (2, 3), (0, 3))]
