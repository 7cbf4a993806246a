"""Arithmetic, powers, exponentials, the matrix product and reductions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .cases import SHAPES, Case, call, normal, positive, rows, spaced

PAIRS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), ()),
    ((), (2, 3)),
    ((2, 3), ()),
    ((2, 3), (2, 3)),
    ((3,), (2, 3)),
    ((2, 1), (1, 3)),
    ((1,), (4,)),
    ((2, 1, 3), (4, 1)),
    ((0, 3), (3,)),
    ((1,), (0,)),
]
PRODUCTS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (3,)),
    ((3,), (3, 2)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((1, 1), (1, 1)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((2, 1, 2, 3), (4, 3, 2)),
    ((3,), (5, 3, 2)),
    ((5, 2, 3), (3,)),
    ((0, 2, 3), (3, 4)),
]
REDUCTIONS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((), {}),
    ((5,), {}),
    ((2, 3), {}),
    ((2, 3), {"keepdims": True}),
    ((2, 3), {"axis": 0}),
    ((2, 3), {"axis": -1, "keepdims": True}),
    ((2, 3), {"axis": (0, 1)}),
    ((2, 3, 4), {"axis": (0, -1)}),
    ((2, 3, 4), {"axis": (-1, 0), "keepdims": True}),
    ((2, 3), {"axis": ()}),
    ((1, 1), {"axis": 1}),
    ((0, 3), {"axis": 1}),
]


def broadcasting(operand: Callable[..., np.ndarray]) -> list[Any]:
    """Calls of a binary op: all pairs of shapes, Python numbers on either side, and small integers beside floats."""
    numbers = [call(operand(2, 3), 2.5), call(3, operand(4)), call(operand(3), np.int8([1, 2, 3]))]
    return [call(operand(*a), operand(*b)) for a, b in PAIRS] + numbers


CASES: list[Case] = [
    *rows("add", np.add, *broadcasting(normal)),
    *rows("subtract", np.subtract, *broadcasting(normal)),
    *rows("multiply", np.multiply, *broadcasting(normal)),
    *rows("divide", np.divide, *broadcasting(positive)),
    *rows("negative", np.negative, *(call(normal(*shape)) for shape in SHAPES)),
    *rows("square", np.square, *(call(normal(*shape)) for shape in SHAPES)),
    *rows("exp", np.exp, *(call(normal(*shape)) for shape in SHAPES)),
    *rows("log", np.log, *(call(positive(*shape)) for shape in SHAPES)),
    *rows("tanh", np.tanh, *(call(normal(*shape)) for shape in SHAPES)),
    *rows(
        "power",
        lambda x, exponent: x**exponent,
        *(call(positive(*shape), exponent=2.5) for shape in SHAPES),
        *(call(positive(4), exponent=exponent) for exponent in (-2, -0.5, 1, 2.0)),
        call(normal(4), exponent=3),
        call(np.array([-1.0, 0.0, 2.0]), exponent=0),
        call(np.array([-1.0, 0.0, 2.0]), exponent=1),
    ),
    *rows(
        "clip",
        lambda x, low, high: np.minimum(np.maximum(x, low), high),
        *(call(spaced(*shape), -0.5, 0.5) for shape in SHAPES),
        call(spaced(7), low=0, high=1),
    ),
    *rows("matmul", np.matmul, *(call(normal(*a), normal(*b)) for a, b in PRODUCTS)),
    *rows("sum", np.sum, *(call(normal(*shape), **axes) for shape, axes in REDUCTIONS), call(normal(0, 3))),
    *rows("mean", np.mean, *(call(normal(*shape), **axes) for shape, axes in REDUCTIONS)),
    *rows("max", np.max, *(call(spaced(*shape), **axes) for shape, axes in REDUCTIONS)),
]
