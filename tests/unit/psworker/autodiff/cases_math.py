"""Elementwise ops and reductions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .cases import Case, call, normal, positive, rows, spaced, unary

PAIRS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((), ()), ((), (2, 3)), ((2, 3), (2, 3)), ((2, 1), (1, 3)), ((3,), (2, 3)), ((1,), (4,)), ((1,), (0,))),
    *(((2, 1, 3), (4, 1)), ((0, 3), (3,))),
]


def binary(operand: Callable[..., np.ndarray], pairs: Any = PAIRS[1:5]) -> list[Any]:
    """Pairs of shapes, Python numbers on either side, and small integers beside floats."""
    numbers = [call(operand(2, 3), 2.5), call(3, operand(4)), call(operand(3), np.int8([1, 2, 3]))]
    return [call(operand(*a), operand(*b)) for a, b in pairs] + numbers


def running_sum(x: np.ndarray, axis: int | None = None, reverse: bool = False) -> np.ndarray:
    """The product with a triangle of ones."""
    x = x.reshape(-1) if axis is None else x.swapaxes(axis, -1)
    triangle = np.tri(x.shape[-1]) if reverse else np.tri(x.shape[-1]).T
    return (x @ triangle).swapaxes(-1 if axis is None else axis, -1)


def reduction(operand: Callable[..., np.ndarray]) -> list[Any]:
    """Over all axes, one of them, several and none, which are kept or not."""
    options: list[dict[str, Any]] = [{}, {"axis": 0}, {"axis": -1, "keepdims": True}, {"axis": ()}]
    calls = [call(operand(2, 3), **option) for option in options] + [call(operand())]
    calls += [call(operand(2, 3, 4), axis=(0, -1)), call(operand(2, 3, 4), axis=(-1, 0), keepdims=True)]
    return [*calls, call(operand(1, 1), axis=1), call(operand(0, 3), axis=1)]


CASES: list[Case] = [
    *rows("add", np.add, *binary(normal, PAIRS)),
    *rows("subtract", np.subtract, *binary(normal)),
    *rows("multiply", np.multiply, *binary(normal, PAIRS)),
    *rows("divide", np.divide, *binary(positive)),
    *rows("maximum", lambda a, b: np.where(a > b, a, b), *binary(normal)),
    *rows("minimum", lambda a, b: np.where(a < b, a, b), *binary(normal)),
    *rows("negative", np.negative, *unary(normal)),
    *rows("square", np.square, *unary(normal)),
    *rows("exp", np.exp, *unary(normal)),
    *rows("log", np.log, *unary(positive)),
    *rows("tanh", np.tanh, *unary(normal)),
    *rows("sqrt", lambda x: np.exp(0.5 * np.log(x)), *unary(positive)),
    *rows("abs", lambda x: x * np.sign(x), *unary(spaced)),
    *rows(
        "power",
        lambda x, exponent: x**exponent,
        *binary(positive),
        *(call(positive(4), exponent) for exponent in (-2.5, -0.5)),
        *(call(np.array([-1.25, 0.5, 2.0]), exponent) for exponent in (-3, -2.0, -1, 1, 2.0, 3, 4.0, 8, 9)),
        call(normal(4), np.int8([0, 1, 2, 3])),
        *(call(np.array([-1.0, 0.0, 2.0]), exponent) for exponent in (0, 1)),
    ),
    *rows("clip", lambda x, low, high: np.minimum(np.maximum(x, low), high), call(spaced(2, 3), -0.5, 0.5)),
    *rows("clip", np.clip, call(spaced(), 0, 1), call(spaced(7), 0, 1), call(spaced(0, 3), 0, 1)),
    *rows("erf", np.vectorize(math.erf, otypes=[float]), *unary(normal), call(np.linspace(-6.5, 6.5, 50))),
    *rows("sum", np.sum, *reduction(normal), call(normal(0, 3))),
    *rows("mean", np.mean, *reduction(normal)),
    *rows("max", np.max, *reduction(spaced)),
    *rows("min", np.min, *reduction(spaced)),
    *rows("logsumexp", lambda x, **axes: np.log(np.sum(np.exp(x), **axes)), *reduction(normal)),
    *rows("cumsum", running_sum, *unary(normal), call(normal(2, 3), reverse=True), call(normal(2, 3), axis=0)),
    *rows("cumsum", running_sum, *(call(normal(*shape), -2, reverse=True) for shape in ((2, 3, 4), (0, 3)))),
]
