"""Activations, softmax and dropout."""

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


class SameEachTime:
    """In place of a generator: draws the same numbers at every call, so that every call drops the same elements."""

    def random(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        return np.random.default_rng(20140601).random(shape, dtype)

    def __str__(self) -> str:
        return "SameEachTime()"


def numpy_dropout(
    x: np.ndarray, rate: float, training: bool = True, generator: SameEachTime | None = None
) -> np.ndarray:
    if generator is None or not training:
        return x
    dropped = generator.random(np.shape(x), np.float32).ravel() < rate
    kept = [0 if drop else value / (1 - rate) for value, drop in zip(np.ravel(x), dropped, strict=True)]
    return np.reshape(kept, np.shape(x))


CASES: list[Case] = [
    *rows("sigmoid", lambda x: 1 / (1 + np.exp(-x)), *(call(normal(*shape)) for shape in SHAPES)),
    *rows("relu", lambda x: np.where(x > 0, x, 0), *(call(spaced(*shape)) for shape in SHAPES)),
    *rows(
        "leaky_relu",
        lambda x, slope=0.2: np.where(x > 0, x, slope * x),
        *(call(spaced(*shape)) for shape in SHAPES),
        *(call(spaced(2, 3), slope=slope) for slope in (0, 0.01, 1)),
    ),
    *rows("softmax", numpy_softmax, *SOFTMAX_CALLS),
    *rows("log_softmax", lambda x, axis=-1: np.log(numpy_softmax(x, axis)), *SOFTMAX_CALLS),
    *rows(
        "dropout",
        numpy_dropout,
        *(call(normal(*shape), rate=0.5, generator=SameEachTime()) for shape in SHAPES),
        call(normal(4, 5), 0.1, generator=SameEachTime()),
        call(normal(4, 5), rate=0.0),
        call(normal(4, 5), rate=0.5, training=False),
    ),
]
