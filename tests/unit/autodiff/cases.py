"""The calls that every differentiable op is tested with: at least one row an op, found by `test_ops.py`.

To add an op, add a `rows(...)`: its name, the same thing in plain numpy, and calls over the shapes and constants that
matter for it. Arrays are differentiated, except those of integers and booleans; Python numbers stay what they are.
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
MASK = np.array([[True, False, True], [False, False, True]])
INDICES: list[Any] = [
    0,
    -1,
    np.int64(1),
    slice(None, None, 2),
    slice(None, None, -1),
    (slice(None), 1),
    (..., np.newaxis, 0),
    (1, 2),
    slice(0, 0),
    MASK,
    (slice(None), MASK[0]),
    [1, 1, 0],
    np.array([[0, 1], [1, 1]]),
    (np.array([0, 1, 1]), np.array([2, 0, 0])),
    (slice(None), [0, 0, -3]),
    (np.newaxis, [True, False], 1),
    np.array([], dtype=np.int64),
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


def numpy_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)


def numpy_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    probabilities = numpy_softmax(logits).reshape(-1, logits.shape[-1])
    if labels.shape != logits.shape:
        return np.mean([-np.log(p[label]) for p, label in zip(probabilities, labels.flat, strict=True)])
    weights = labels.reshape(probabilities.shape)
    return np.mean([-np.sum(w * np.log(p)) for p, w in zip(probabilities, weights, strict=True)])


SOFTMAX_CALLS = [
    call(normal(5)),
    call(normal(2, 3)),
    call(normal(2, 3), axis=0),
    call(normal(2, 3, 4), axis=-2),
    call(normal(1, 1)),
    call(normal(0, 3)),
]

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
    *rows("sigmoid", lambda x: 1 / (1 + np.exp(-x)), *(call(normal(*shape)) for shape in SHAPES)),
    *rows("relu", lambda x: np.where(x > 0, x, 0), *(call(spaced(*shape)) for shape in SHAPES)),
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
    *rows(
        "reshape",
        np.reshape,
        call(normal(2, 3), (3, 2)),
        call(normal(2, 3), -1),
        call(normal(2, 3), (1, -1, 2)),
        call(normal(1), ()),
        call(normal(), (1, 1)),
        call(normal(0, 3), (3, 0, 2)),
    ),
    *rows(
        "transpose",
        np.transpose,
        call(normal(2, 3)),
        call(normal(2, 3, 4)),
        call(normal(2, 3, 4), (1, 2, 0)),
        call(normal(2, 3, 4), axes=(-1, 0, -2)),
        call(normal()),
        call(normal(0, 3)),
    ),
    *rows("getitem", lambda x, index: x[index], *(call(normal(2, 3), index) for index in INDICES), call(normal(), ())),
    *rows("softmax", numpy_softmax, *SOFTMAX_CALLS),
    *rows("log_softmax", lambda x, axis=-1: np.log(numpy_softmax(x, axis)), *SOFTMAX_CALLS),
    *rows(
        "softmax_cross_entropy",
        numpy_cross_entropy,
        call(normal(4, 3), np.array([0, 2, 2, 1])),
        call(normal(4, 3), np.uint8([0, 2, 2, 1])),
        call(normal(2, 2, 3), np.array([[0, 2], [2, 1]])),
        call(normal(3), np.array(1)),
        call(normal(1, 1), np.array([0])),
        call(normal(2, 3), labels=numpy_softmax(normal(2, 3))),
        call(normal(2, 3), labels=np.eye(3, dtype=np.int64)[[2, 0]]),
        call(normal(2, 2, 3), labels=positive(2, 2, 3)),
    ),
    *rows(
        "mean_squared_error",
        lambda predictions, targets: np.mean((predictions - targets) ** 2),
        *(call(normal(*shape), normal(*shape)) for shape in SHAPES if 0 not in shape),
        call(normal(), 1.5),
    ),
]
