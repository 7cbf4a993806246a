"""What a model is trained to make small, each loss beside its derivative; and the accuracy it is judged by.

Only numpy, the tape and the other ops may be imported here.
"""

from __future__ import annotations

import numpy as np

from psworker.autodiff.ops.array import check_class_ids
from psworker.autodiff.tape import Result, op
from psworker.autodiff.tensor import Array, TensorLike, as_array

__all__ = ["accuracy", "mean_squared_error", "softmax_cross_entropy"]


@op
def softmax_cross_entropy(logits: Array, /, labels: TensorLike) -> Result:
    """The mean over the batch of -sum(labels * log(softmax(logits))), a scalar of the logits' dtype.

    `logits`: (..., classes), unscaled. `labels`, a constant: integer class ids of shape (...), or weights of the
    logits' shape (one-hot or probabilities). Finite for all finite logits: each row is shifted by its largest
    (Goodfellow, Bengio and Courville, Deep Learning, 2016, section 4.1). The gradient of a row is
    softmax(logits) * sum(labels) - labels, over the batch size.

    Raises ValueError when the shapes do not fit, an id is not in 0 ... classes - 1 or the batch is empty, TypeError
    when ids are not integers.
    """
    labels = as_array(labels)
    _check_batch(logits, labels)
    rows = logits.reshape(-1, logits.shape[-1])
    batch = len(rows)
    shifted = rows - np.maximum.reduce(rows, axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = np.add.reduce(exponentials, axis=1, keepdims=True)

    if labels.ndim < logits.ndim:
        chosen = np.arange(batch), labels.reshape(-1)
        loss = np.add.reduce(np.log(sums[:, 0]) - shifted[chosen]) / batch

        def gradient(g: Array) -> Array:
            logits_gradient: Array = exponentials / sums
            logits_gradient[chosen] -= 1
            logits_gradient *= g / batch
            return logits_gradient.reshape(logits.shape)

    else:
        weights = labels.astype(logits.dtype, copy=False).reshape(rows.shape)
        row_weights = np.add.reduce(weights, axis=1, keepdims=True)
        loss = (np.vdot(row_weights, np.log(sums)) - np.vdot(weights, shifted)) / batch

        def gradient(g: Array) -> Array:
            logits_gradient: Array = (exponentials / sums * row_weights - weights) * (g / batch)
            return logits_gradient.reshape(logits.shape)

    return loss, (gradient,)


@op
def mean_squared_error(predictions: Array, targets: Array, /) -> Result:
    """The mean of (predictions - targets) ** 2 over all elements, a scalar; both of one shape, nothing is broadcast."""
    if np.shape(predictions) != np.shape(targets):
        raise ValueError("predictions and targets must have the same shape (reshape one of them)")
    difference = np.subtract(predictions, targets)
    if difference.size == 0:
        raise ValueError("there are no elements to take the mean of")

    def gradient(g: Array) -> Array:
        return difference * (2 * g / difference.size)

    return np.vdot(difference, difference) / difference.size, (gradient, lambda g: -gradient(g))


def accuracy(logits: TensorLike, labels: TensorLike) -> float:
    """The share of the batch, 0 to 1, whose largest logit is that of its label (of equal ones, the first counts).

    `logits`: (..., classes). `labels`: class ids of shape (...), or weights of the logits' shape, whose largest counts.
    Raises what `softmax_cross_entropy` raises.
    """
    logits, labels = as_array(logits), as_array(labels)
    _check_batch(logits, labels, "accuracy: ")
    ids = labels if labels.ndim < logits.ndim else labels.argmax(axis=-1)
    return float(np.mean(logits.argmax(axis=-1) == ids))


def _check_batch(logits: Array, labels: Array, where: str = "") -> None:
    if np.ndim(logits) == 0 or logits.dtype.kind != "f":
        raise TypeError(f"{where}logits must be floating point, of shape (..., classes)")
    if logits.size == 0:
        raise ValueError(f"{where}the batch is empty: there is nothing to take the mean of")
    if labels.shape == logits.shape[:-1]:
        check_class_ids(f"{where}labels", labels, logits.shape[-1])
    elif labels.shape != logits.shape:
        raise ValueError(
            f"{where}labels must be class ids of shape {logits.shape[:-1]} or weights of shape {logits.shape}, "
            f"but their shape is {labels.shape}"
        )
