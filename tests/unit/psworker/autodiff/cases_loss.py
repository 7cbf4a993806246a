"""Losses."""

import numpy as np

from .cases import SHAPES, Case, call, normal, positive, rows, spaced
from .cases_nn import numpy_softmax


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
    losses = np.where(np.equal(labels, 1), np.maximum(0, 1 - logits), np.maximum(0, 1 + logits))
    return np.mean(losses)


def numpy_huber(predictions: np.ndarray, targets: np.ndarray, delta: float = 1.0) -> np.ndarray:
    d = np.abs(predictions - targets)
    return np.mean(np.where(d <= delta, d**2 / 2, delta * (d - delta / 2)))


def wide(*shape: int) -> np.ndarray:
    """Distinct numbers in (-3, 3) in random order, none at 0, 1 or -1."""
    return np.asarray(3 * spaced(*shape))


FULL_SHAPES = [shape for shape in SHAPES if 0 not in shape]

CASES: list[Case] = [
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
        *(call(normal(*shape), normal(*shape)) for shape in FULL_SHAPES),
        call(normal(), 1.5),
    ),
    *rows(
        "huber_loss",
        numpy_huber,
        *(call(wide(*shape), spaced(*shape)) for shape in FULL_SHAPES),
        call(spaced(7), np.zeros(7), delta=0.5),
        call(wide(7), np.zeros(7), 0.01),
        call(normal(), 9),
    ),
    *rows(
        "sigmoid_cross_entropy",
        numpy_sigmoid_cross_entropy,
        *(call(normal(*shape), labels=np.abs(spaced(*shape))) for shape in FULL_SHAPES),
        call(normal(2, 3), np.array([[0, 1, 1], [0, 0, 1]])),
        call(normal(3), np.array([True, False, True])),
        call(normal(2, 3), 1),
        call(normal(2, 3), labels=0.9),
    ),
    *rows(
        "hinge_loss",
        numpy_hinge,
        *(call(wide(*shape), np.array(spaced(*shape) > 0)) for shape in FULL_SHAPES),
        call(wide(2, 3), np.uint8([[0, 1, 1], [0, 0, 1]])),
        call(wide(2, 3), labels=np.array([[0.0, 1, 1], [0, 0, 1]])),
        call(wide(5), 1),
    ),
]
