"""Losses."""

import numpy as np

from .cases import SHAPES, Case, call, normal, positive, rows
from .cases_nn import numpy_softmax


def numpy_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    probabilities = numpy_softmax(logits).reshape(-1, logits.shape[-1])
    if labels.shape != logits.shape:
        return np.mean([-np.log(p[label]) for p, label in zip(probabilities, labels.flat, strict=True)])
    weights = labels.reshape(probabilities.shape)
    return np.mean([-np.sum(w * np.log(p)) for p, w in zip(probabilities, weights, strict=True)])


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
        *(call(normal(*shape), normal(*shape)) for shape in SHAPES if 0 not in shape),
        call(normal(), 1.5),
    ),
]
