"""Normalisation."""

import numpy as np

from .cases import Case, call, normal, positive, rows


def numpy_batch_norm(
    x: np.ndarray, gamma: np.ndarray | None = None, beta: np.ndarray | None = None, epsilon: float = 1e-3
) -> np.ndarray:
    y = np.empty_like(x)
    for feature in range(x.shape[-1]):
        column = x[..., feature]
        y[..., feature] = (column - np.mean(column)) / (np.var(column) + epsilon) ** 0.5
    return y * (1 if gamma is None else gamma) + (0 if beta is None else beta)


def numpy_layer_norm(
    x: np.ndarray, gamma: np.ndarray | None = None, beta: np.ndarray | None = None, epsilon: float = 1e-5
) -> np.ndarray:
    y = np.empty_like(x)
    for example in np.ndindex(x.shape[:-1]):
        y[example] = (x[example] - np.mean(x[example])) / (np.var(x[example]) + epsilon) ** 0.5
    return y * (1 if gamma is None else gamma) + (0 if beta is None else beta)


def numpy_batch_norm_inference(
    x: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    gamma: np.ndarray | None = None,
    beta: np.ndarray | None = None,
    epsilon: float = 1e-3,
) -> np.ndarray:
    """By an affine map of each feature."""
    scale = (1 if gamma is None else gamma) / (np.asarray(variance) + epsilon) ** 0.5
    return x * scale + ((0 if beta is None else beta) - np.asarray(mean) * scale)


def graded(*shape: int) -> np.ndarray:
    """Numbers whose spread along the first and the last axis is well above 0, whatever is drawn."""
    x = normal(*shape) / 4
    for axis in {0, len(shape) - 1}:
        x += np.expand_dims(np.linspace(-1, 1, shape[axis]), [other for other in range(len(shape)) if other != axis])
    return x


CALLS = [
    call(graded(5, 3), normal(3), normal(3)),
    call(graded(5, 3), None, None),
    call(graded(5, 3), None, normal(3)),
    call(graded(5, 3), normal(3), None),
    call(graded(4, 2, 3, 2), positive(2), normal(2)),
    call(graded(7, 1), normal(1), normal(1)),
    call(graded(5, 3), normal(3), normal(3), epsilon=0.5),
    call(graded(4), normal(4), normal(4)),
    call(graded(1, 3), normal(3), normal(3)),
    call(graded(1, 1), normal(1), normal(1)),
]

MEAN, VARIANCE = [0.5, -2.0, 0.0], [1.0, 0.25, 9.0]  # lists, as test_ops.py differentiates arrays
INFERENCE_CALLS = [
    *(
        call(normal(*shape), MEAN, VARIANCE, normal(3), normal(3))
        for shape in [(5, 3), (3,), (2, 1, 3), (1, 3), (0, 3)]
    ),
    call(normal(5, 3), MEAN, VARIANCE),
    call(normal(5, 3), MEAN, VARIANCE, None, normal(3)),
    call(normal(5, 3), MEAN, VARIANCE, normal(3), None, 0.5),
    call(normal(4, 2, 2, 1), [0.5], [0.0], positive(1), normal(1), epsilon=0.1),
    call(normal(2, 0), [], [], normal(0), normal(0)),
]

CASES: list[Case] = [
    *rows("batch_norm", numpy_batch_norm, *CALLS),
    *rows("layer_norm", numpy_layer_norm, *CALLS, call(normal(0, 3), normal(3), normal(3)), call(normal(2, 0, 3))),
    *rows("batch_norm_inference", numpy_batch_norm_inference, *INFERENCE_CALLS),
]
