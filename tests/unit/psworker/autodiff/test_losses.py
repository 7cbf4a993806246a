"""The losses against formulas in 50 decimal digits and at the edges where naive code breaks."""

from decimal import Decimal, getcontext

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops

SEED = 19981127
INF, NAN = np.inf, np.nan
IDS = np.array([3, 0, 9, 9, 1])


def logits(scale=1.0, shape=(5, 10), dtype=np.float64):
    return Tensor((np.random.default_rng(SEED).uniform(-scale, scale, shape)).astype(dtype), requires_grad=True)


def exact_cross_entropy(rows, ids):
    """The mean of log(sum(exp(x))) - x[id], and its gradient."""
    getcontext().prec = 50
    loss, gradient = Decimal(0), np.zeros(rows.shape)
    for n, (row, label) in enumerate(zip(rows, ids, strict=True)):
        exponentials = [Decimal(float(x)).exp() for x in row]
        total = sum(exponentials)
        loss += total.ln() - Decimal(float(row[label]))
        gradient[n] = [float(e / total) - (k == label) for k, e in enumerate(exponentials)]
    return float(loss / len(ids)), gradient / len(ids)


def exact_sigmoid_cross_entropy(logits, labels):
    """The mean of log(1 + exp(x)) - z x, and its gradient 1 / (1 + exp(-x)) - z."""
    getcontext().prec = 50
    xs, zs = [[Decimal(float(v)) for v in values.flat] for values in (logits, labels)]
    loss = sum((1 + x.exp()).ln() - z * x for x, z in zip(xs, zs, strict=True))
    gradient = [float(1 / (1 + (-x).exp()) - z) for x, z in zip(xs, zs, strict=True)]
    return float(loss / len(xs)), np.reshape(gradient, logits.shape) / len(xs)


@pytest.mark.parametrize("scale", [1e-3, 30.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cross_entropies_equal_their_definition_at_every_scale(scale, dtype):
    x = logits(scale, dtype=dtype)
    labels = np.random.default_rng(SEED).choice([0, 0.25, 1], x.shape)
    eps = np.finfo(dtype).eps
    for loss, (value, gradient) in (
        (ops.softmax_cross_entropy(x, IDS), exact_cross_entropy(x.value, IDS)),
        (ops.sigmoid_cross_entropy(x, labels), exact_sigmoid_cross_entropy(x.value, labels)),
    ):
        np.testing.assert_allclose(loss.value, value, rtol=20 * eps)
        np.testing.assert_allclose(gradients(loss, x)[0], gradient, rtol=1e4 * eps, atol=eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_cross_entropy_of_large_infinite_and_masked_logits_is_alike_by_ids_and_one_hot(dtype):
    huge = np.finfo(dtype).max
    far = np.array([[1e4, -1e4, 0], [-1e4, 1e4, 1e4], [1e4, 1e4, 1e4]], dtype)
    ends = np.array([[-huge, huge, 0], [-INF, 1, 2], [3, -INF, -INF]], dtype)
    far_gradient = np.array([[1, -1, 0], [0, 0.5, -0.5], [1 / 3 - 1, 1 / 3, 1 / 3]]) / 3
    share = 1 / (1 + np.e) / 3
    ends_gradient = np.array([[0, 0, 0], [0, share, -share], [0, 0, 0]])
    for values, ids, loss, gradient in (
        (far, [1, 2, 0], (2e4 + np.log(2) + np.log(3)) / 3, far_gradient),
        (ends, [1, 2, 0], np.log(1 + np.exp(-1)) / 3, ends_gradient),
    ):
        for labels in (ids, np.eye(3, dtype=dtype)[ids], np.eye(3)[ids] == 1):
            x = Tensor(values, requires_grad=True)
            y = ops.softmax_cross_entropy(x, labels)
            np.testing.assert_allclose(y.value, loss, rtol=1e-6)
            np.testing.assert_allclose(gradients(y, x)[0], gradient, rtol=1e-6, atol=1e-7)
    assert ops.softmax_cross_entropy(ends[1], np.array([1, 0, 0], dtype)).value == INF
    assert np.isnan(ops.softmax_cross_entropy(np.array([NAN, 1], dtype), np.array([0, 1], dtype)).value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("logit", "label", "loss", "slope"),
    [
        (INF, 0, INF, 1),
        (INF, 1, 0, 0),
        (INF, 0.25, INF, 0.75),
        (-INF, 0, 0, 0),
        (-INF, 1, INF, -1),
        (NAN, 1, NAN, NAN),
        (2, NAN, NAN, NAN),
    ],
)
def test_the_sigmoid_cross_entropy_of_an_infinite_logit_is_its_limit(logit, label, loss, slope, dtype):
    x = Tensor(np.array([logit, 3, -3], dtype), requires_grad=True)
    y = ops.sigmoid_cross_entropy(x, np.array([label, 1, 0]))
    np.testing.assert_allclose(y.value, (loss + 2 * np.log1p(np.exp(-3))) / 3, rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_allclose(gradients(y, x)[0][0], slope / 3, rtol=np.finfo(dtype).eps)
    np.testing.assert_equal(ops.sigmoid_cross_entropy(np.array([[logit]], dtype), label).item(), loss)


def test_losses_of_infinite_logits_and_differences_are_infinite():
    for far in (INF, -INF):
        x = Tensor(np.float32([far, 1]), requires_grad=True)
        huber = ops.huber_loss(x, np.float32([0, 1]))
        assert huber.value == ops.mean_squared_error(x, np.float32([0, 1])).value == INF
        np.testing.assert_array_equal(gradients(huber, x)[0], [np.sign(far) / 2, 0])
        assert ops.hinge_loss(x, np.float32([far < 0, 1])).value == INF
        assert ops.hinge_loss(x, np.float32([far > 0, 1])).value == 0
    for count in (10, 10_000):  # overflows without a warning
        assert ops.mean_squared_error(np.full(count, 1e25, np.float32), np.zeros(count, np.float32)).value == INF


def test_hinge_loss_is_the_shortfall_from_a_margin_of_1_and_has_derivative_0_there():
    x = Tensor(np.array([2.0, 1, 0.5, -3, -1, 0.5]), requires_grad=True)
    loss = ops.hinge_loss(x, [1, 1, 1, 1, 0, 0])
    np.testing.assert_allclose(loss.value, (0 + 0 + 0.5 + 4 + 0 + 1.5) / 6, rtol=1e-15)
    np.testing.assert_allclose(gradients(loss, x)[0], np.array([0, 0, -1, -1, 0, 1]) / 6, rtol=1e-15)


def test_huber_loss_is_quadratic_near_0_and_linear_far_out():
    a, b = logits(), Tensor(np.zeros((5, 10)), requires_grad=True)
    np.testing.assert_allclose(ops.huber_loss(a, b).value, ops.mean_squared_error(a, b).value / 2, rtol=1e-14)
    far = Tensor(np.float32([1e4, -1e4, 1e30, 0.5]), requires_grad=True)
    loss = ops.huber_loss(far, np.zeros(4, np.float32), delta=2.0)
    np.testing.assert_array_equal(gradients(loss, far)[0], [0.5, -0.5, 0.5, 0.125])


def test_targets_get_the_opposite_gradient_of_predictions():
    for loss in (ops.mean_squared_error, ops.huber_loss):
        a, b = logits(3.0), Tensor(np.ones((5, 10)), requires_grad=True)
        gradient_a, gradient_b = gradients(loss(a, b), [a, b])
        np.testing.assert_array_equal(gradient_b, -gradient_a)


def test_accuracy_is_the_fraction_of_largest_logits_at_the_label():
    x = Tensor(np.array([[0.1, 0.9, 0], [5, 1, 2], [0, 0, 0], [1, 2, 3]]), requires_grad=True)
    assert ops.accuracy(x, [1, 0, 1, 0]) == 0.5
    assert ops.accuracy(x, ops.one_hot([1, 0, 0, 2], 3)) == 1.0
    assert type(ops.accuracy(x, [1, 0, 1, 0])) is float
