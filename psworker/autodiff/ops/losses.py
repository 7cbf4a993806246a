"""Losses, each beside its derivative, and accuracy."""

from __future__ import annotations

import numpy as np

from pswire.tensors.sums import add_over, dot
from psworker.autodiff.ops.elementwise.activations import logistic
from psworker.autodiff.ops.selection.indexing import checked_ids
from psworker.autodiff.tape import Result, float16_in_float32, floating, op
from psworker.autodiff.tensor import Array, TensorLike, Vjp, as_array

__all__ = ["accuracy", "hinge_loss", "huber_loss", "mean_squared_error", "sigmoid_cross_entropy"]
__all__ += ["softmax_cross_entropy"]


@op
@float16_in_float32
def softmax_cross_entropy(logits: Array, /, labels: TensorLike) -> Result:
    """The mean over the batch of -sum(labels * log(softmax(logits))), a scalar of the logits' dtype.

    `logits`: (..., classes), unscaled; -inf masks a class. `labels`, a constant: integer class ids of shape (...), or
    weights of the logits' shape (one-hot or probabilities). Rows are shifted by their largest logit against overflow
    (Goodfellow, Bengio and Courville, Deep Learning, 2016, section 4.1).

    Raises ValueError when the shapes do not fit, there is one class, an id is not in 0 ... classes - 1 or the batch is
    empty, TypeError when ids are not integers.
    """
    labels = as_array(labels)
    _check_batch(logits, labels)
    rows = logits.reshape(-1, logits.shape[-1])
    batch = len(rows)
    with np.errstate(over="ignore"):  # a difference beyond the range is -inf
        shifted = rows - np.maximum.reduce(rows, axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = add_over(exponentials, 1, keepdims=True)

    if labels.ndim < logits.ndim:
        chosen = np.arange(batch), labels.reshape(-1)
        loss = np.add.reduce(np.log(sums[:, 0]) - shifted[chosen]) / batch

        def gradient(g: Array) -> Array:
            logits_gradient: Array = exponentials / sums
            logits_gradient[chosen] -= 1
            logits_gradient *= g / batch
            return logits_gradient.reshape(logits.shape)

        return loss, (gradient,)

    weights = labels.astype(logits.dtype, copy=False).reshape(rows.shape)
    row_weights = add_over(weights, 1, keepdims=True)
    weighted = np.asarray(dot(weights, shifted))
    if np.isnan(weighted):  # a weight of 0 masks -inf; rare, and the sum below is several times slower
        weighted = np.asarray(add_over(_weighted(weights, shifted)))
    return (dot(row_weights, np.log(sums)) - weighted) / batch, (
        lambda g: ((exponentials / sums * row_weights - weights) * (g / batch)).reshape(logits.shape),
    )


@op
@float16_in_float32
def sigmoid_cross_entropy(logits: Array, /, labels: TensorLike) -> Result:
    """The mean over all elements of -z log(sigmoid(x)) - (1 - z) log(1 - sigmoid(x)), a scalar of the logits' dtype.

    `logits` x: any shape, unscaled. `labels` z, a constant: probabilities, 0 to 1, of the logits' shape, or one number
    for all. Computed as max(x, 0) - x z + log(1 + exp(-|x|)), which is finite for finite logits (Goodfellow, Bengio and
    Courville, Deep Learning, 2016, section 6.2.2.2); for an infinite logit it is the limit, 0 or inf.

    Raises ValueError when the shapes do not fit or there are no logits, TypeError when these are not floating point.
    """
    logits = np.asarray(logits)
    labels = _element_labels(logits, labels)
    log_terms = np.log1p(np.exp(-np.abs(logits)))
    with np.errstate(invalid="ignore"):
        loss = np.mean(np.clip(logits, 0, np.inf) - logits * labels + log_terms)
    if np.isnan(loss):  # inf - inf or 0 * inf; rare, and the form below is several times slower
        above, below = _weighted(1 - labels, np.maximum(logits, 0)), _weighted(labels, np.maximum(-logits, 0))
        loss = np.mean(above + below + log_terms)

    def gradient(g: Array) -> Array:
        logits_gradient = logistic(logits)
        logits_gradient -= labels
        logits_gradient *= g / logits.size
        return logits_gradient

    return loss, (gradient,)


@op
@float16_in_float32
def hinge_loss(logits: Array, /, labels: TensorLike) -> Result:
    """The mean over all elements of max(0, 1 - s x), where s is +1 for a label 1 and -1 for a label 0; a scalar.

    `logits` x: any shape, positive for class 1. `labels`, a constant: 0 and 1 (not -1), or booleans, of the logits'
    shape, or one for all. The derivative at the kink, s x = 1, is taken as 0.

    Source: C. Cortes, V. Vapnik, "Support-Vector Networks", Machine Learning 20, 1995. Raises ValueError when the
    shapes do not fit, a label is neither 0 nor 1 or there are no logits, TypeError when these are not floating point.
    """
    logits = np.asarray(logits)
    labels = _element_labels(logits, labels)
    if np.any((labels != 0) & (labels != 1)):
        raise ValueError("labels must be 0 or 1 (for -1 and 1, pass `labels > 0`)")
    signs = 2 * labels - 1
    shortfalls = 1 - signs * logits
    return np.mean(np.clip(shortfalls, 0, np.inf)), (lambda g: signs * (shortfalls > 0) * (-g / logits.size),)


@op
@float16_in_float32
def mean_squared_error(predictions: Array, targets: Array, /) -> Result:
    """The mean of (predictions - targets) ** 2 over all elements, a scalar; shapes must be equal (no broadcasting)."""
    difference = _difference(predictions, targets)
    by_prediction: Vjp = lambda g: difference * (2 * g / difference.size)
    return dot(difference, difference) / difference.size, (by_prediction, lambda g: -by_prediction(g))


@op
@float16_in_float32
def huber_loss(predictions: Array, targets: Array, /, delta: float = 1.0) -> Result:
    """The mean over all elements of d^2 / 2 where |d| <= delta and of delta (|d| - delta / 2) beyond, a scalar.

    d = predictions - targets, of equal shapes (no broadcasting).

    Source: P. Huber, "Robust Estimation of a Location Parameter", Annals of Mathematical Statistics 35, 1964, section
    1. Raises ValueError when the shapes differ, there are no elements or delta is not above 0.
    """
    if not delta > 0:
        raise ValueError("delta must be above 0")
    difference = _difference(predictions, targets)
    clipped = np.clip(difference, -delta, delta)
    by_prediction: Vjp = lambda g: clipped * (g / clipped.size)
    return np.mean(clipped * (difference - clipped / 2)), (by_prediction, lambda g: -by_prediction(g))


def _weighted(weights: Array, x: Array) -> Array:
    """The product weights * x, and 0 where the weight is 0, whatever x is."""
    return np.multiply(weights, x, where=weights != 0, out=np.zeros_like(x))


def accuracy(logits: TensorLike, labels: TensorLike) -> float:
    """The fraction of the batch, 0 to 1, whose largest logit (the first among equals) is at the label.

    `logits`: (..., classes). `labels`: class ids of shape (...), or weights of the logits' shape, of which the largest
    counts. Raises the same errors as `softmax_cross_entropy`.
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
    if logits.shape[-1] == 1:
        raise ValueError(
            f"{where}logits of shape {logits.shape} have one class, always right: for two classes by one logit take "
            "ops.sigmoid_cross_entropy and the metric ps.metrics.accuracy(ops.sigmoid(logits), labels), for "
            "numbers ops.mean_squared_error, otherwise logits with a column for each class"
        )
    if labels.shape == logits.shape[:-1]:
        checked_ids(f"{where}labels", labels, logits.shape[-1], ValueError)
    elif labels.shape != logits.shape:
        raise ValueError(
            f"{where}labels must be class ids of shape {logits.shape[:-1]} or weights of shape {logits.shape}, "
            f"but their shape is {labels.shape}"
        )


def _element_labels(logits: Array, labels: TensorLike) -> Array:
    """Labels in the dtype of the logits: one per logit, or one for all."""
    if logits.dtype.kind != "f":
        raise TypeError("logits must be floating point")
    labels = as_array(labels)
    if labels.ndim and labels.shape != logits.shape:
        raise ValueError(f"labels must have the logits' shape {logits.shape}, but their shape is {labels.shape}")
    if logits.size == 0:
        raise ValueError("there are no logits to take the mean of")
    return labels.astype(logits.dtype, copy=False)


def _difference(predictions: Array, targets: Array) -> Array:
    if np.shape(predictions) != np.shape(targets):
        raise ValueError("predictions and targets must have the same shape (such as predictions[:, 0])")
    difference = np.asarray(np.subtract(floating(predictions), floating(targets)))
    if difference.size == 0:
        raise ValueError("there are no elements to take the mean of")
    return difference
