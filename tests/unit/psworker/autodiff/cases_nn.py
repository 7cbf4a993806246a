"""Activations, losses and normalisation."""

import math
from typing import Any

import numpy as np

from .cases import Case, call, normal, positive, rows, spaced, unary, wide


def numpy_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)


class SameEachTime:
    """In place of a generator: draws the same numbers at every call, so that every call drops the same elements."""

    def random(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        return np.random.default_rng(20140601).random(shape, dtype)


def numpy_dropout(x: np.ndarray, rate: float, training: bool = True, generator: Any = None) -> np.ndarray:
    kept = 1 if generator is None or not training else (generator.random(x.shape, np.float32) >= rate) / (1 - rate)
    return x * kept


def numpy_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    probabilities = numpy_softmax(logits).reshape(-1, logits.shape[-1])
    if labels.shape != logits.shape:
        return np.mean([-np.log(p[label]) for p, label in zip(probabilities, labels.flat, strict=True)])
    weights = labels.reshape(probabilities.shape)
    return np.mean([-np.sum(w * np.log(p)) for p, w in zip(probabilities, weights, strict=True)])


def numpy_sigmoid_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    p, labels = 1 / (1 + np.exp(-logits)), np.float64(labels)
    return np.mean(-labels * np.log(p) - (1 - labels) * np.log(1 - p))


def numpy_hinge(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.mean(np.where(np.equal(labels, 1), np.maximum(0, 1 - logits), np.maximum(0, 1 + logits)))


def numpy_huber(predictions: np.ndarray, targets: np.ndarray, delta: float = 1.0) -> np.ndarray:
    d = np.abs(predictions - targets)
    return np.mean(np.where(d <= delta, d**2 / 2, delta * (d - delta / 2)))


def normalised(x, mean, variance, gamma, beta, epsilon):
    y = (x - np.asarray(mean)) / (np.asarray(variance) + epsilon) ** 0.5
    return y * (1 if gamma is None else gamma) + (0 if beta is None else beta)


def numpy_batch_norm(x, gamma=None, beta=None, epsilon=1e-3):
    axes = tuple(range(x.ndim - 1))
    return normalised(x, x.mean(axes), x.var(axes), gamma, beta, epsilon)


def numpy_layer_norm(x, gamma=None, beta=None, epsilon=1e-5):
    return normalised(x, x.mean(-1, keepdims=True), x.var(-1, keepdims=True), gamma, beta, epsilon)


def numpy_batch_norm_inference(x, mean, variance, gamma=None, beta=None, epsilon=1e-3):
    return normalised(x, mean, variance, gamma, beta, epsilon)


def graded(*shape: int) -> np.ndarray:
    """Numbers whose spread along the first and the last axis is well above 0, whatever is drawn."""
    x = normal(*shape) / 4
    for axis in {0, len(shape) - 1}:
        x += np.expand_dims(np.linspace(-1, 1, shape[axis]), [other for other in range(len(shape)) if other != axis])
    return x


NORMS = [
    *(call(graded(5, 3), gamma, beta) for gamma, beta in ((None, None), (None, normal(3)), (normal(3), None))),
    *(call(graded(*shape), positive(shape[-1]), normal(shape[-1])) for shape in ((4, 2, 3, 2), (7, 1), (4,), (1, 3))),
    call(graded(5, 3), normal(3), normal(3), epsilon=0.5),
]
MEAN, VARIANCE = [0.5, -2.0, 0.0], [1.0, 0.25, 9.0]  # lists, which are constants
SOFTMAX = [call(normal(2, 3)), call(normal(2, 3, 4), axis=-2), call(normal(1, 1)), call(normal(0, 3))]
SHAPES: list[tuple[int, ...]] = [(), (5,), (2, 1, 3)]

CASES: list[Case] = [
    *rows("sigmoid", lambda x: 1 / (1 + np.exp(-x)), *unary(normal)),
    *rows("softplus", lambda x: np.log(1 + np.exp(x)), *unary(normal)),
    *rows("relu", lambda x: np.where(x > 0, x, 0), *unary(spaced)),
    *rows("gelu", np.vectorize(lambda x: x * math.erfc(-x / math.sqrt(2)) / 2, otypes=[float]), *unary(normal)),
    *rows("leaky_relu", lambda x, slope=0.2: np.where(x > 0, x, slope * x), *unary(spaced)),
    *rows("leaky_relu", lambda x, slope: np.where(x > 0, x, slope * x), *(call(spaced(4), s) for s in (0, 0.01, 1))),
    *rows("softmax", numpy_softmax, *SOFTMAX),
    *rows("log_softmax", lambda x, axis=-1: np.log(numpy_softmax(x, axis)), *SOFTMAX),
    *rows(
        "dropout",
        numpy_dropout,
        *(call(normal(*shape), rate=0.5, generator=SameEachTime()) for shape in ((), (4, 5), (0, 3))),
        call(normal(4, 5), rate=0.0),
        call(normal(4, 5), rate=0.5, training=False),
    ),
    *rows(
        "softmax_cross_entropy",
        numpy_cross_entropy,
        call(normal(4, 3), np.uint8([0, 2, 2, 1])),
        call(normal(2, 2, 3), np.array([[0, 2], [2, 1]])),
        call(normal(3), np.array(1)),
        call(normal(2, 3), labels=np.eye(3, dtype=np.int64)[[2, 0]]),
        call(normal(2, 2, 3), labels=positive(2, 2, 3)),
    ),
    *rows(
        "sigmoid_cross_entropy",
        numpy_sigmoid_cross_entropy,
        *(call(normal(*shape), labels=np.abs(spaced(*shape))) for shape in SHAPES),
        *(call(normal(3), labels) for labels in (np.array([0, 1, 1]), np.array([True, False, True]), 1)),
    ),
    *rows(
        "hinge_loss",
        numpy_hinge,
        *(call(wide(*shape), np.array(spaced(*shape) > 0)) for shape in SHAPES),
        call(wide(2, 3), labels=np.array([[0.0, 1, 1], [0, 0, 1]])),
        call(wide(5), 1),
    ),
    *rows("mean_squared_error", lambda a, b: np.mean((a - b) ** 2), *(call(normal(*s), normal(*s)) for s in SHAPES)),
    *rows("mean_squared_error", lambda a, b: np.mean((a - b) ** 2), call(normal(), 1.5)),
    *rows("huber_loss", numpy_huber, *(call(wide(*shape), spaced(*shape)) for shape in SHAPES)),
    *rows("huber_loss", numpy_huber, call(wide(7), np.zeros(7), 0.01), call(normal(), 9)),
    *rows("batch_norm", numpy_batch_norm, *NORMS),
    *rows("layer_norm", numpy_layer_norm, *NORMS, call(normal(0, 3), normal(3), normal(3)), call(normal(2, 0, 3))),
    *rows(
        "batch_norm_inference",
        numpy_batch_norm_inference,
        *(call(normal(*shape), MEAN, VARIANCE, normal(3), normal(3)) for shape in [(5, 3), (3,), (2, 1, 3), (0, 3)]),
        call(normal(5, 3), MEAN, VARIANCE),
        call(normal(5, 3), MEAN, VARIANCE, None, normal(3)),
        call(normal(5, 3), MEAN, VARIANCE, normal(3), None, 0.5),
        call(normal(4, 2, 2, 1), [0.5], [0.0], positive(1), normal(1), epsilon=0.1),
        call(normal(2, 0), [], [], normal(0), normal(0)),
    ),
]
