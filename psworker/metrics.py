"""Metrics of evaluations: what they add up over examples, and the value that follows from the sums.

    def measure(batch):
        logits = model(batch.image)
        return {
            "loss": ops.softmax_cross_entropy(logits, batch.label),
            "accuracy": ps.metrics.accuracy(logits, batch.label),
            "f1": ps.metrics.f1(logits, batch.label, average="macro"),
        }

    results = session.evaluate(measure, mnist.test)  # {"loss": 0.29, "accuracy": 0.91, "f1": 0.91}

A function takes the predictions and labels of a batch and returns its `Metric`; those of several batches, of any
workers, are added up. Counts are exact, so the result does not depend on who has evaluated which examples. Imports the
engine's arrays only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from pswire.tensors.values import Array
from psworker import familiar_names
from psworker.autodiff.ops.selection.indexing import checked_ids
from psworker.autodiff.tensor import TensorLike, as_array

__all__ = [
    "Average",
    "Metric",
    "accuracy",
    "auc",
    "confusion_matrix",
    "f1",
    "mean",
    "mean_absolute_error",
    "mean_squared_error",
    "precision",
    "r2",
    "recall",
    "root_mean_squared_error",
    "top_k_accuracy",
]

#: How precision, recall and F1 of several classes become one number: their mean ("macro"), their mean by the number of
#: examples of each class ("weighted"), or those of all examples together ("micro"); None: an array, one for each class.
Average: TypeAlias = Literal["macro", "weighted", "micro"] | None


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """The sums of a metric over some examples: (n,), float64; `finish` makes the value of them.

    `float(metric)` is that of these examples alone; `metric + other` has both, of the same function with the same
    arguments. Raises `ValueError` if their sums have other lengths.
    """

    sums: Array
    finish: Callable[[Array], Any]

    @property
    def value(self) -> Any:  # noqa: ANN401 - a number, or an array
        """The value over these examples."""
        return self.finish(self.sums)

    def __float__(self) -> float:
        return float(self.value)

    def __add__(self, other: Metric) -> Metric:
        if self.sums.shape != other.sums.shape:
            raise ValueError(
                f"a metric with {len(self.sums)} sums plus one with {len(other.sums)}: they must be of the same "
                "function with the same number of classes"
            )
        return Metric(self.sums + other.sums, self.finish)


def mean(values: TensorLike) -> Metric:
    """The mean of `values`, one or more for each example, of any shape."""
    array = as_array(values)
    return Metric(np.array([np.sum(array, dtype=np.float64), array.size], np.float64), _ratio)


def accuracy(predictions: TensorLike, labels: TensorLike) -> Metric:
    """The fraction of examples whose prediction is the label.

    `predictions`: (..., classes), of which the largest is the prediction, or (n,) or (n, 1) for two classes: the
    probability of class 1, which is predicted from 0.5 up. `labels`: class ids of shape (...) or (n, 1), or weights of
    the predictions' shape, of which the largest counts. Raises `ValueError` for one prediction for each example whose
    labels are not the integers 0 and 1, as in a regression.
    """
    predicted, ids, _ = _classes(predictions, labels)
    return mean(predicted == ids)


def top_k_accuracy(predictions: TensorLike, labels: TensorLike, k: int = 5) -> Metric:
    """The fraction of examples whose label is among the `k` largest predictions; the first classes win among equals.

    `predictions` (..., classes) and `labels` as of `accuracy`. Raises `ValueError` unless 1 <= k <= classes.
    """
    scores, (_, ids, classes) = as_array(predictions), _classes(predictions, labels)
    if not 1 <= k <= classes or scores.ndim == np.ndim(ids):
        raise ValueError(f"top_k_accuracy: k must be from 1 to the number of classes, {classes}, got {k}")
    chosen = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    return mean(np.any(chosen == ids[..., None], axis=-1))


def confusion_matrix(predictions: TensorLike, labels: TensorLike) -> Metric:
    """The number of examples of each class (row) for which each class (column) is predicted: (classes, classes), int64.

    Arguments as of `accuracy`; with one score for each example it is (2, 2).
    """
    return _of_matrix(predictions, labels, lambda matrix: matrix)


def precision(predictions: TensorLike, labels: TensorLike, average: Average = "macro") -> Metric:
    """The fraction of the examples that are predicted to be of a class which are of it; 0 if none is predicted.

    Arguments as of `accuracy`. With one score for each example it is that of class 1, otherwise by `average`.
    """
    return _by_class(predictions, labels, average, lambda hits, predicted, of_class: _divided(hits, predicted))


def recall(predictions: TensorLike, labels: TensorLike, average: Average = "macro") -> Metric:
    """The fraction of the examples of a class which are predicted to be of it; 0 if there are none.

    Arguments as of `precision`.
    """
    return _by_class(predictions, labels, average, lambda hits, predicted, of_class: _divided(hits, of_class))


def f1(predictions: TensorLike, labels: TensorLike, average: Average = "macro") -> Metric:
    """The harmonic mean of precision and recall, 2 * hits / (predicted + of the class); arguments as of `precision`."""
    return _by_class(
        predictions, labels, average, lambda hits, predicted, of_class: _divided(2 * hits, predicted + of_class)
    )


def auc(scores: TensorLike, labels: TensorLike, bins: int = 4096) -> Metric:
    """The area under the ROC curve: the probability that an example of class 1 has a higher score than one of class 0.

    Scores are counted in `bins` of equal width, and pairs in one bin as half: the result is exact but for these, of
    which it may be off by half their fraction of all pairs. NaN if a class has no example.

    Source: J. A. Hanley, B. J. McNeil, "The Meaning and Use of the Area under a Receiver Operating Characteristic (ROC)
    Curve", Radiology 143 (1982).

    Args:
        scores: of each example, (...), from 0 to 1; `ops.sigmoid` of a logit.
        labels: 0 or 1, of the shape of the scores.
        bins: the more, the more exact; 2 sums each.

    Raises `ValueError` for scores outside of 0 to 1, or shapes that differ.
    """
    values, ids = as_array(scores), as_array(labels)
    if values.shape != ids.shape:
        raise ValueError(f"auc: scores {values.shape} and labels {ids.shape} must have one shape")
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError("auc: scores must be from 0 to 1: take ops.sigmoid of logits")
    places = np.minimum((values.reshape(-1).astype(np.float64) * bins).astype(np.int64), bins - 1)
    positive = np.bincount(places, ids.reshape(-1) == 1, minlength=bins)
    return Metric(np.concatenate([positive, np.bincount(places, minlength=bins) - positive]), _area)


def mean_absolute_error(predictions: TensorLike, targets: TensorLike) -> Metric:
    """The mean of |prediction - target| over all elements; both of one shape, or `ValueError`."""
    return mean(np.abs(_errors("mean_absolute_error", predictions, targets)))


def mean_squared_error(predictions: TensorLike, targets: TensorLike) -> Metric:
    """The mean of (prediction - target)^2 over all elements; both of one shape, or `ValueError`."""
    return mean(np.square(_errors("mean_squared_error", predictions, targets)))


def root_mean_squared_error(predictions: TensorLike, targets: TensorLike) -> Metric:
    """The square root of the mean of (prediction - target)^2 over all elements; both of one shape, or `ValueError`."""
    squared = mean(np.square(_errors("root_mean_squared_error", predictions, targets)))
    return Metric(squared.sums, lambda sums: math.sqrt(_ratio(sums)))


def r2(predictions: TensorLike, targets: TensorLike) -> Metric:
    """The fraction of the targets' variance that is predicted: 1 - sum (target - prediction)^2 / sum (target - mean)^2.

    1 is perfect, and 0 as good as the targets' mean. Both are of one shape, (n,) or (n, outputs), or `ValueError`; of
    several outputs it is the mean of theirs. NaN if targets are equal up to a millionth of their size: the sums are of
    squares, so take targets from which an offset much larger than their differences is subtracted.
    """
    errors, goals = _errors("r2", predictions, targets), as_array(targets).astype(np.float64)
    rows = [one.reshape(len(one), -1) for one in (np.ones_like(goals), goals, goals**2, errors**2)]
    return Metric(np.concatenate([one.sum(axis=0) for one in rows]), _explained)


def _errors(name: str, predictions: TensorLike, targets: TensorLike) -> Array:
    one, other = as_array(predictions), as_array(targets)
    if one.shape != other.shape:
        raise ValueError(f"{name}: predictions {one.shape} and targets {other.shape} must have one shape")
    return one.astype(np.float64) - other.astype(np.float64)


def _ratio(sums: Array) -> float:
    return float(sums[0] / sums[1]) if sums[1] else float("nan")


def _divided(numerator: Array, denominator: Array) -> Array:
    """Their quotient in float64; 0 where the denominator is."""
    return np.divide(numerator, denominator, out=np.zeros(np.shape(numerator)), where=denominator != 0)


def _classes(predictions: TensorLike, labels: TensorLike) -> tuple[Array, Array, int]:
    """The class ids that are predicted, those of the labels, and the number of classes."""
    scores, ids = as_array(predictions), as_array(labels)
    if _is_binary(scores, ids):
        return scores >= 0.5, checked_ids("labels", ids.astype(np.int64), 2, ValueError), 2
    if scores.shape[-1:] == (1,) or scores.shape == ids.shape[:1]:
        raise ValueError(
            f"predictions {scores.shape} and labels {ids.dtype} {ids.shape}: one prediction for each example is the "
            "probability of class 1 of two, such as ops.sigmoid of a logit, and needs labels 0 and 1 of the same shape "
            "and of integers (labels.astype(int)); a regression is measured by ps.metrics.mean_squared_error, "
            "mean_absolute_error or r2"
        )
    if scores.ndim == 0 or ids.shape not in (scores.shape, scores.shape[:-1]):
        raise ValueError(
            f"labels must be class ids of shape {scores.shape[:-1]} or weights of shape {scores.shape}, but their "
            f"shape is {ids.shape}"
        )
    classes = scores.shape[-1]
    if ids.shape == scores.shape:
        ids = ids.argmax(axis=-1)
    return scores.argmax(axis=-1), checked_ids("labels", ids, classes, ValueError), classes


def _is_binary(scores: Array, ids: Array) -> bool:
    """Whether there is one score for each example: the probability of class 1."""
    return scores.shape == ids.shape and ids.dtype.kind in "iub" and (ids.ndim < 2 or ids.shape[1:] == (1,))


def _of_matrix(predictions: TensorLike, labels: TensorLike, finish: Callable[[Array], Any]) -> Metric:
    """A metric of the confusion matrix."""
    predicted, ids, classes = _classes(predictions, labels)
    places = ids.reshape(-1).astype(np.int64) * classes + predicted.reshape(-1)
    sums = np.bincount(places, minlength=classes * classes).astype(np.float64)
    return Metric(sums, lambda found: finish(found.astype(np.int64).reshape(classes, classes)))


def _by_class(
    predictions: TensorLike, labels: TensorLike, average: Average, score: Callable[[Array, Array, Array], Array]
) -> Metric:
    """A score of each class by its hits, how often it is predicted, and its examples; averaged."""
    if average not in ("macro", "weighted", "micro", None):
        raise ValueError(f"average must be 'macro', 'weighted', 'micro' or None, got {average!r}")
    two = _is_binary(as_array(predictions), as_array(labels))

    def finish(matrix: Array) -> Any:  # noqa: ANN401
        hits, predicted, of_class = np.diagonal(matrix), matrix.sum(axis=0), matrix.sum(axis=1)
        if average == "micro" and not two:
            return float(score(hits.sum(), predicted.sum(), of_class.sum()))
        scores = score(hits, predicted, of_class)
        if two:
            return float(scores[1])
        if average is None:
            return scores
        return float(np.average(scores, weights=of_class if average == "weighted" else None))

    return _of_matrix(predictions, labels, finish)


def _explained(sums: Array) -> float:
    count, total, squares, errors = sums.reshape(4, -1)
    spread = squares - total**2 / count
    known = spread > 1e-12 * squares
    return float(np.mean(1 - np.divide(errors, spread, out=np.full(spread.shape, np.nan), where=known)))


def _area(sums: Array) -> float:
    positive, negative = np.split(sums, 2)
    pairs = positive.sum() * negative.sum()
    if not pairs:
        return float("nan")
    above = positive[::-1].cumsum()[::-1] - positive  # positives in higher bins
    return float((negative @ above + negative @ positive / 2) / pairs)


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        raise familiar_names.missing("metrics", name)
