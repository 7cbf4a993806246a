"""Activations and softmax."""

import numpy as np

from .cases import SHAPES, Case, call, normal, rows, spaced


def numpy_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)


SOFTMAX_CALLS = [
    call(normal(5)),
    call(normal(2, 3)),
    call(normal(2, 3), axis=0),
    call(normal(2, 3, 4), axis=-2),
    call(normal(1, 1)),
    call(normal(0, 3)),
]


CASES: list[Case] = [
    *rows("sigmoid", lambda x: 1 / (1 + np.exp(-x)), *(call(normal(*shape)) for shape in SHAPES)),
    *rows("relu", lambda x: np.where(x > 0, x, 0), *(call(spaced(*shape)) for shape in SHAPES)),
    *rows("softmax", numpy_softmax, *SOFTMAX_CALLS),
    *rows("log_softmax", lambda x, axis=-1: np.log(numpy_softmax(x, axis)), *SOFTMAX_CALLS),
]
