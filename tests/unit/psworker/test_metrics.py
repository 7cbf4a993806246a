"""Metrics against definitions that are written out example by example, or pair by pair, and that they add up."""

import itertools
import math

import numpy as np
import pytest

import psworker as ps
from psworker import metrics

CLASSES = 4
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(90, CLASSES)).astype(np.float32)
LABELS = np.where(RANDOM.random(90) < 0.6, LOGITS.argmax(1), RANDOM.integers(0, CLASSES - 1, 90))
PREDICTED = [int(np.argmax(row)) for row in LOGITS]
SCORES = RANDOM.random(90)
BINARY = (SCORES + RANDOM.normal(size=90) / 3 > 0.5).astype(np.int64)


def counts(of):
    """Hits, predictions and examples of a class, counted one by one."""
    pairs = list(zip(PREDICTED, LABELS, strict=True))
    return sum(one == other == of for one, other in pairs), PREDICTED.count(of), list(LABELS).count(of)


def scores(rule):
    return [rule(*counts(of)) for of in range(CLASSES)]


RULES = {
    metrics.precision: lambda hits, predicted, of_class: hits / predicted,
    metrics.recall: lambda hits, predicted, of_class: hits / of_class if of_class else 0.0,
    metrics.f1: lambda hits, predicted, of_class: 2 * hits / (predicted + of_class),
}


def split(function, *arguments, parts=3, **options):
    """The metric of all examples as the sum of those of parts of different size."""
    pieces = zip(*[np.array_split(one, [7, 50][: parts - 1]) for one in arguments], strict=True)
    total = None
    for piece in pieces:
        one = function(*piece, **options)
        total = one if total is None else total + one
    return total.value


def test_accuracy_counts_predictions_that_are_the_label():
    expected = sum(one == other for one, other in zip(PREDICTED, LABELS, strict=True)) / 90
    assert split(metrics.accuracy, LOGITS, LABELS) == metrics.accuracy(LOGITS, LABELS).value == expected
    assert metrics.accuracy(LOGITS, np.eye(CLASSES)[LABELS]).value == expected, "labels as weights"
    assert float(metrics.accuracy(ps.Tensor(LOGITS), LABELS)) == expected


def test_top_k_accuracy_counts_labels_among_the_largest():
    for k in range(1, CLASSES + 1):
        expected = sum(
            label in sorted(range(CLASSES), key=lambda c: -row[c])[:k]
            for row, label in zip(LOGITS, LABELS, strict=True)
        )
        assert split(metrics.top_k_accuracy, LOGITS, LABELS, k=k) == expected / 90
    with pytest.raises(ValueError, match="k must be from 1 to the number of classes, 4, got 5"):
        metrics.top_k_accuracy(LOGITS, LABELS, 5)


def test_a_confusion_matrix_has_a_row_for_each_label_and_a_column_for_each_prediction():
    matrix = split(metrics.confusion_matrix, LOGITS, LABELS)
    for label, predicted in itertools.product(range(CLASSES), repeat=2):
        assert matrix[label, predicted] == list(zip(LABELS, PREDICTED, strict=True)).count((label, predicted))
    assert matrix.dtype == np.int64


@pytest.mark.parametrize("function", RULES, ids=lambda function: function.__name__)
def test_scores_of_classes_are_those_of_counts_one_by_one(function):
    each = scores(RULES[function])
    np.testing.assert_allclose(split(function, LOGITS, LABELS, average=None), each)
    assert split(function, LOGITS, LABELS) == pytest.approx(np.mean(each))
    weights = [counts(of)[2] for of in range(CLASSES)]
    assert split(function, LOGITS, LABELS, average="weighted") == pytest.approx(np.average(each, weights=weights))
    assert split(function, LOGITS, LABELS, average="micro") == pytest.approx(metrics.accuracy(LOGITS, LABELS).value)
    with pytest.raises(ValueError, match="average must be 'macro', 'weighted', 'micro' or None, got 'mean'"):
        function(LOGITS, LABELS, average="mean")


@pytest.mark.parametrize("column", [False, True])
def test_scores_of_two_classes_are_those_of_class_1(column):
    shape = (90, 1) if column else (90,)
    values, labels = SCORES.reshape(shape), BINARY.reshape(shape)
    hits, predicted = np.sum((SCORES >= 0.5) & (BINARY == 1)), np.sum(SCORES >= 0.5)
    assert split(metrics.precision, values, labels) == pytest.approx(hits / predicted)
    assert split(metrics.recall, values, labels) == pytest.approx(hits / BINARY.sum())
    assert split(metrics.accuracy, values, labels) == np.mean((SCORES >= 0.5) == BINARY)


def test_a_class_that_is_never_predicted_has_precision_0():
    assert list(metrics.precision(LOGITS[:, :2] - [0, 100], LABELS % 2, average=None).value)[1] == 0.0


def test_auc_is_the_fraction_of_pairs_in_which_class_1_has_the_higher_score():
    pairs = list(itertools.product(SCORES[BINARY == 1], SCORES[BINARY == 0]))
    exact = np.mean([(one > other) + (one == other) / 2 for one, other in pairs])
    assert split(metrics.auc, SCORES, BINARY) == pytest.approx(exact, abs=1e-3)
    rounded = np.round(SCORES, 1) * 0.99  # many equal scores
    pairs = list(itertools.product(rounded[BINARY == 1], rounded[BINARY == 0]))
    assert split(metrics.auc, rounded, BINARY) == pytest.approx(np.mean([(a > b) + (a == b) / 2 for a, b in pairs]))
    assert math.isnan(metrics.auc(SCORES, np.ones(90)).value)
    with pytest.raises(ValueError, match="scores must be from 0 to 1"):
        metrics.auc(LOGITS[:, 0], BINARY)
    with pytest.raises(ValueError, match=r"scores \(90,\) and labels \(89,\) must have one shape"):
        metrics.auc(SCORES, BINARY[1:])


def test_errors_are_means_over_all_elements():
    targets = RANDOM.normal(size=LOGITS.shape)
    differences = [float(a) - float(b) for a, b in zip(LOGITS.ravel(), targets.ravel(), strict=True)]
    assert split(metrics.mean_absolute_error, LOGITS, targets) == pytest.approx(np.mean(np.abs(differences)))
    assert split(metrics.mean_squared_error, LOGITS, targets) == pytest.approx(np.mean(np.square(differences)))
    expected = math.sqrt(np.mean(np.square(differences)))
    assert split(metrics.root_mean_squared_error, LOGITS, targets) == pytest.approx(expected)
    assert split(metrics.mean, LOGITS) == pytest.approx(np.mean(LOGITS.astype(np.float64)))
    with pytest.raises(ValueError, match="must have one shape"):
        metrics.mean_absolute_error(LOGITS, LABELS)


def test_r2_is_the_part_of_the_variance_that_is_predicted():
    predictions = LOGITS + np.float64(100)
    targets = predictions + RANDOM.normal(size=LOGITS.shape)
    unexplained = np.mean((predictions - targets) ** 2, axis=0) / np.var(targets, axis=0)
    assert split(metrics.r2, predictions, targets) == pytest.approx(1 - np.mean(unexplained))
    one = metrics.r2(predictions[:, 0], targets[:, 0]).value
    assert one == pytest.approx(1 - unexplained[0]) == metrics.r2(predictions[:, :1], targets[:, :1]).value
    assert math.isnan(metrics.r2(LOGITS[:, 0], np.full(90, 0.1)).value)


@pytest.mark.parametrize("labels", [np.float32(BINARY), SCORES[:, None], np.zeros(90, np.int64)])
@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.f1, metrics.top_k_accuracy])
def test_a_regression_has_no_accuracy(metric, labels):
    predictions = LOGITS[:, :1] if labels.dtype.kind == "i" else LOGITS[:, :1].reshape(labels.shape)
    with pytest.raises(ValueError, match=r"needs labels 0 and 1.*a regression is measured by ps.metrics.mean_squared"):
        metric(predictions, labels)


def test_metrics_of_other_numbers_of_classes_are_not_added():
    with pytest.raises(ValueError, match="a metric with 16 sums plus one with 4"):
        metrics.f1(LOGITS, LABELS) + metrics.f1(LOGITS[:, :2], LABELS % 2)
    with pytest.raises(ValueError, match=r"labels must be in 0 \.\.\. 1"):
        metrics.f1(LOGITS[:, :2], LABELS)
    with pytest.raises(ValueError, match=r"class ids of shape \(90,\)"):
        metrics.accuracy(LOGITS, LABELS[1:])
