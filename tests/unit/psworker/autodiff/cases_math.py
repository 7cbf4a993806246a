"""Arithmetic, powers, exponentials and comparisons, element by element, and the error function."""

import math
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


def broadcasting(operand: Callable[..., np.ndarray]) -> list[Any]:
    """Calls of a binary op: all pairs of shapes, Python numbers on either side, and small integers beside floats."""
    numbers = [call(operand(2, 3), 2.5), call(3, operand(4)), call(operand(3), np.int8([1, 2, 3]))]
    return [call(operand(*a), operand(*b)) for a, b in PAIRS] + numbers


def wide(n: int) -> np.ndarray:
    """Numbers over the whole range where the error function changes."""
    return np.linspace(-6.5, 6.5, n)


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
        *broadcasting(positive),
        *(call(positive(*shape), 2.5) for shape in SHAPES),
        *(call(positive(4), exponent) for exponent in (-2.5, -0.5)),
        *(call(np.array([-1.25, 0.5, 2.0]), exponent) for exponent in (-3, -2.0, -1, 1, 2.0, 3, 4.0, 8, 9)),
        call(normal(4), np.int8([0, 1, 2, 3])),
        call(np.array([-1.0, 0.0, 2.0]), 0),
        call(np.array([-1.0, 0.0, 2.0]), 1),
    ),
    *rows(
        "clip",
        lambda x, low, high: np.minimum(np.maximum(x, low), high),
        *(call(spaced(*shape), -0.5, 0.5) for shape in SHAPES),
        call(spaced(7), low=0, high=1),
    ),
    *rows("sqrt", lambda x: np.exp(0.5 * np.log(x)), *(call(positive(*shape)) for shape in SHAPES)),
    *rows("abs", lambda x: x * np.sign(x), *(call(spaced(*shape)) for shape in SHAPES)),
    *rows("softplus", lambda x: np.log(1 + np.exp(x)), *(call(normal(*shape)) for shape in SHAPES)),
    *rows("maximum", lambda a, b: np.where(a > b, a, b), *broadcasting(normal)),
    *rows("minimum", lambda a, b: np.where(a < b, a, b), *broadcasting(normal)),
    *rows("erf", np.vectorize(math.erf, otypes=[float]), *(call(normal(*shape)) for shape in SHAPES), call(wide(50))),
    *rows(
        "gelu",
        np.vectorize(lambda x: x * math.erfc(-x / math.sqrt(2)) / 2, otypes=[float]),
        *(call(normal(*shape)) for shape in SHAPES),
        call(wide(50)),
    ),
]
