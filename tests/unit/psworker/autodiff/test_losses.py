"""The losses against formulas in float64 written from their definition, at the edges where naive code breaks."""

from decimal import Decimal, getcontext

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops

SEED = 19981127
IDS = np.array([3, 0, 9, 9, 1])


def logits(scale=1.0, shape=(5, 10), dtype=np.float64):
    return Tensor((np.random.default_rng(SEED).uniform(-scale, scale, shape)).astype(dtype), requires_grad=True)


def exact_cross_entropy(rows, ids):
    """The mean of log(sum(exp(x))) - x[id], and its gradient, in 50 decimal digits, which no exponential overflows."""
    getcontext().prec = 50
    loss, gradient = Decimal(0), np.zeros(rows.shape)
    for n, (row, label) in enumerate(zip(rows, ids, strict=True)):
        exponentials = [Decimal(float(x)).exp() for x in row]
        total = sum(exponentials)
        loss += total.ln() - Decimal(float(row[label]))
        gradient[n] = [float(e / total) - (k == label) for k, e in enumerate(exponentials)]
    return float(loss / len(ids)), gradient / len(ids)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3, 1e4])
def test_cross_entropy_equals_its_definition_at_every_scale(scale):
    x = logits(scale)
    loss = ops.softmax_cross_entropy(x, IDS)
    expected_loss, expected_gradient = exact_cross_entropy(x.value, IDS)
    np.testing.assert_allclose(loss.value, expected_loss, rtol=1e-14)
    np.testing.assert_allclose(gradients(loss, x)[0], expected_gradient, rtol=1e-11, atol=1e-16)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("one_hot", [False, True])
def test_cross_entropy_is_exact_for_logits_of_ten_thousand(dtype, one_hot):
    x = Tensor(np.array([[1e4, -1e4, 0], [-1e4, 1e4, 1e4], [1e4, 1e4, 1e4]], dtype), requires_grad=True)
    ids = np.array([1, 2, 0])
    loss = ops.softmax_cross_entropy(x, ops.one_hot(ids, 3) if one_hot else ids)
    np.testing.assert_allclose(loss.value, (2e4 + np.log(2) + np.log(3)) / 3, rtol=1e-7)
    expected = np.array([[1, -1, 0], [0, 0.5, -0.5], [1 / 3 - 1, 1 / 3, 1 / 3]]) / 3
    np.testing.assert_allclose(gradients(loss, x)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_class_ids_and_one_hot_labels_give_the_same(dtype):
    x = logits()
    results = []
    for labels in (IDS.astype(dtype), ops.one_hot(IDS, 10), np.eye(10, dtype=dtype)[IDS], np.eye(10)[IDS] == 1):
        loss = ops.softmax_cross_entropy(x, labels)
        results.append((loss.value, gradients(loss, x)[0]))
    for value, gradient in results[1:]:
        np.testing.assert_allclose(value, results[0][0], rtol=1e-14)
        np.testing.assert_allclose(gradient, results[0][1], rtol=1e-13, atol=1e-17)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_masked_class_and_logits_at_the_ends_of_the_range_cost_the_same_by_ids_and_one_hot(dtype):
    huge = np.finfo(dtype).max
    logits = np.array([[-huge, huge, 0], [-np.inf, 1, 2], [3, -np.inf, -np.inf]], dtype)
    ids = np.array([1, 2, 0])
    found = []
    for labels in (ids, np.eye(3, dtype=dtype)[ids]):
        x = Tensor(logits, requires_grad=True)
        y = ops.softmax_cross_entropy(x, labels)
        found += gradients(y, x)
        np.testing.assert_allclose(y.value, np.log(1 + np.exp(-1)) / 3, rtol=1e-6)
    np.testing.assert_allclose(found[0], found[1], atol=1e-7)
    assert ops.softmax_cross_entropy(logits[1], np.array([1, 0, 0], dtype)).value == np.inf
    assert np.isnan(ops.softmax_cross_entropy(np.array([np.nan, 1], dtype), np.array([0, 1], dtype)).value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("logit", "label", "loss", "slope"),
    [
        (np.inf, 0, np.inf, 1),
        (np.inf, 1, 0, 0),
        (np.inf, 0.25, np.inf, 0.75),
        (-np.inf, 0, 0, 0),
        (-np.inf, 1, np.inf, -1),
        (-np.inf, 0.25, np.inf, -0.25),
        (np.nan, 0, np.nan, np.nan),
        (np.nan, 1, np.nan, np.nan),
        (2, np.nan, np.nan, np.nan),
    ],
)
def test_the_sigmoid_cross_entropy_of_an_infinite_logit_is_its_limit(logit, label, loss, slope, dtype):
    beside = 2 * np.log1p(np.exp(-3))  # two that are finite, in the same mean
    for labels in (np.array([label, 1, 0]), np.array([label, 1, 0], dtype)):
        x = Tensor(np.array([logit, 3, -3], dtype), requires_grad=True)
        y = ops.sigmoid_cross_entropy(x, labels)
        np.testing.assert_allclose(y.value, (loss + beside) / 3, rtol=4 * np.finfo(dtype).eps)
        np.testing.assert_allclose(gradients(y, x)[0][0], slope / 3, rtol=np.finfo(dtype).eps)
    np.testing.assert_equal(ops.sigmoid_cross_entropy(np.array([[logit]], dtype), label).item(), loss)


def test_the_losses_of_what_is_infinitely_far_off_are_infinite():
    for far in (np.inf, -np.inf):
        x = Tensor(np.float32([far, 1]), requires_grad=True)
        huber = ops.huber_loss(x, np.float32([0, 1]))
        assert huber.value == ops.mean_squared_error(x, np.float32([0, 1])).value == np.inf
        np.testing.assert_array_equal(gradients(huber, x)[0], [np.sign(far) / 2, 0])
        assert ops.hinge_loss(x, np.float32([far < 0, 1])).value == np.inf
        assert ops.hinge_loss(x, np.float32([far > 0, 1])).value == 0


@pytest.mark.parametrize("count", [10, 10_000])
def test_a_squared_error_that_overflows_is_infinite_without_a_warning(count):
    assert ops.mean_squared_error(np.full(count, 1e25, np.float32), np.zeros(count, np.float32)).value == np.inf


def test_labels_may_be_tensors_and_lists():
    expected = ops.softmax_cross_entropy(logits(), IDS).item()
    assert ops.softmax_cross_entropy(logits(), Tensor(IDS)).item() == expected
    assert ops.softmax_cross_entropy(logits(), labels=IDS.tolist()).item() == expected


def test_leading_axes_are_all_batch():
    x = logits(shape=(2, 3, 10))
    ids = np.arange(6)
    flat = Tensor(x.value.reshape(6, 10), requires_grad=True)
    loss, flat_loss = ops.softmax_cross_entropy(x, ids.reshape(2, 3)), ops.softmax_cross_entropy(flat, ids)
    assert loss.item() == flat_loss.item()
    np.testing.assert_array_equal(gradients(loss, x)[0].reshape(6, 10), gradients(flat_loss, flat)[0])


def test_zero_logits_cost_the_logarithm_of_the_number_of_classes():
    loss = ops.softmax_cross_entropy(ops.zeros((100, 10)), np.zeros(100, np.uint8))
    assert loss.dtype == np.float32
    np.testing.assert_allclose(loss.value, np.log(10), rtol=1e-6)


def test_the_gradient_of_softmax_regression_equals_plain_numpy():
    random = np.random.default_rng(SEED)
    x, w, b = random.random((100, 784)), random.standard_normal((784, 10)) / 28, random.standard_normal(10)
    ids = random.integers(0, 10, 100)
    z = x @ w + b
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    error = (p - np.eye(10)[ids]) / 100

    W, B = (Tensor(v.astype(np.float32), requires_grad=True) for v in (w, b))
    loss = ops.softmax_cross_entropy(ops.matmul(x.astype(np.float32), W) + B, ids)
    gradient_w, gradient_b = gradients(loss, [W, B])
    np.testing.assert_allclose(loss.value, -np.log(p[np.arange(100), ids]).mean(), rtol=1e-6)
    np.testing.assert_allclose(gradient_w, x.T @ error, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient_b, error.sum(axis=0), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        (np.array([0, 1, 2, 3, 10]), ValueError, r"labels must be in 0 \.\.\. 9, but they span 0 \.\.\. 10"),
        (np.array([0, -1, 2, 3, 9]), ValueError, r"labels must be in 0 \.\.\. 9, but they span -1 \.\.\. 9"),
        (np.array([0.0, 1, 2, 3, 4]), TypeError, "labels must be integer class ids, but they are float64"),
        (np.zeros(4, np.int64), ValueError, r"class ids of shape \(5,\) or weights of shape \(5, 10\), .* is \(4,\)"),
        (np.zeros((5, 1), np.int64), ValueError, r"but their shape is \(5, 1\)"),
        (np.zeros((5, 9)), ValueError, r"but their shape is \(5, 9\)"),
        (Tensor(np.zeros((5, 10)), requires_grad=True), TypeError, "stop_gradient"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, kind, message):
    with pytest.raises(kind, match=rf"softmax_cross_entropy\(logits: float64 \(5, 10\), labels: .*{message}"):
        ops.softmax_cross_entropy(logits(), labels)


def test_logits_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="the batch is empty"):
        ops.softmax_cross_entropy(np.zeros((0, 10)), np.zeros(0, np.int64))
    with pytest.raises(TypeError, match="logits must be floating point"):
        ops.softmax_cross_entropy(np.zeros((2, 10), np.int64), np.zeros(2, np.int64))
    with pytest.raises(TypeError, match="logits must be floating point"):
        ops.softmax_cross_entropy(1.0, 0)


def test_mean_squared_error_equals_its_definition_and_has_opposite_gradients():
    a, b = logits(), Tensor(np.ones((5, 10)), requires_grad=True)
    loss = ops.mean_squared_error(a, b)
    gradient_a, gradient_b = gradients(loss, [a, b])
    np.testing.assert_allclose(loss.value, sum((v - 1) ** 2 for v in a.value.flat) / 50, rtol=1e-14)
    np.testing.assert_allclose(gradient_a, (a.value - 1) / 25, rtol=1e-14)
    np.testing.assert_array_equal(gradient_b, -gradient_a)


def test_mean_squared_error_broadcasts_nothing():
    with pytest.raises(ValueError, match="must have the same shape"):
        ops.mean_squared_error(np.zeros((5, 1)), np.zeros(5))
    with pytest.raises(ValueError, match="no elements"):
        ops.mean_squared_error(np.zeros((0, 2)), np.zeros((0, 2)))


def exact_sigmoid_cross_entropy(logits, labels):
    """The mean of log(1 + exp(x)) - z x, and its gradient 1 / (1 + exp(-x)) - z, in 50 decimal digits."""
    getcontext().prec = 50
    xs, zs = [[Decimal(float(v)) for v in values.flat] for values in (logits, labels)]
    loss = sum((1 + x.exp()).ln() - z * x for x, z in zip(xs, zs, strict=True))
    gradient = [float(1 / (1 + (-x).exp()) - z) for x, z in zip(xs, zs, strict=True)]
    return float(loss / len(xs)), np.reshape(gradient, logits.shape) / len(xs)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_cross_entropy_equals_its_definition_at_every_scale(scale, dtype):
    x = logits(scale, dtype=dtype)
    labels = np.random.default_rng(SEED).choice([0, 0.25, 1], x.shape)
    loss = ops.sigmoid_cross_entropy(x, labels)
    expected_loss, expected_gradient = exact_sigmoid_cross_entropy(x.value, labels)
    precision = np.finfo(dtype).eps
    np.testing.assert_allclose(loss.value, expected_loss, rtol=20 * precision)
    np.testing.assert_allclose(gradients(loss, x)[0], expected_gradient, rtol=20 * precision, atol=precision / 50)


def test_sigmoid_cross_entropy_is_softmax_cross_entropy_of_two_classes():
    x = logits(5.0)
    ids = np.arange(50).reshape(5, 10) % 3 % 2
    both = ops.softmax_cross_entropy(np.stack([np.zeros((5, 10)), x.value], axis=-1), ids)
    np.testing.assert_allclose(ops.sigmoid_cross_entropy(x, ids).value, both.value, rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_losses_of_single_logits_are_exact_for_logits_of_ten_thousand(dtype):
    x = Tensor(np.array([1e4, 1e4, -1e4, -1e4], dtype), requires_grad=True)
    labels = [1, 0, 1, 0]
    loss = ops.sigmoid_cross_entropy(x, labels)
    assert loss.item() == 1e4 / 2
    np.testing.assert_array_equal(gradients(loss, x)[0], [0, 0.25, -0.25, 0])
    loss = ops.hinge_loss(x, labels)
    assert loss.item() == (1 + 1e4) / 2
    np.testing.assert_array_equal(gradients(loss, x)[0], [0, 0.25, -0.25, 0])


def test_one_label_stands_for_all_logits():
    x = logits()
    for loss in (ops.sigmoid_cross_entropy, ops.hinge_loss):
        assert loss(x, 1).item() == loss(x, np.ones((5, 10))).item()
        assert loss(x, False).item() == loss(x, np.zeros((5, 10), bool)).item()


def test_hinge_loss_costs_what_is_missing_to_a_margin_of_1_and_has_derivative_0_there():
    x = Tensor(np.array([2.0, 1, 0.5, -3, -1, 0.5]), requires_grad=True)
    loss = ops.hinge_loss(x, [1, 1, 1, 1, 0, 0])
    np.testing.assert_allclose(loss.value, (0 + 0 + 0.5 + 4 + 0 + 1.5) / 6, rtol=1e-15)
    np.testing.assert_allclose(gradients(loss, x)[0], np.array([0, 0, -1, -1, 0, 1]) / 6, rtol=1e-15)


def test_huber_loss_is_half_the_squared_error_near_and_linear_far_away():
    a, b = logits(), Tensor(np.zeros((5, 10)), requires_grad=True)
    np.testing.assert_allclose(ops.huber_loss(a, b).value, ops.mean_squared_error(a, b).value / 2, rtol=1e-14)
    far = Tensor(np.float32([1e4, -1e4, 1e30, 0.5]), requires_grad=True)
    loss = ops.huber_loss(far, np.zeros(4, np.float32), delta=2.0)
    np.testing.assert_array_equal(gradients(loss, far)[0], [0.5, -0.5, 0.5, 0.125])
    np.testing.assert_allclose(
        ops.huber_loss(far[:2], np.zeros(2, np.float32), delta=2.0).value, 2 * (1e4 - 1), rtol=1e-7
    )


def test_huber_loss_has_opposite_gradients():
    a, b = logits(3.0), Tensor(np.ones((5, 10)), requires_grad=True)
    gradient_a, gradient_b = gradients(ops.huber_loss(a, b), [a, b])
    np.testing.assert_allclose(gradient_a, np.clip(a.value - 1, -1, 1) / 50, rtol=1e-14)
    np.testing.assert_array_equal(gradient_b, -gradient_a)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: ops.sigmoid_cross_entropy(logits(), np.zeros((5, 1))), ValueError, r"\(5, 10\), .* is \(5, 1\)"),
        (lambda: ops.hinge_loss(logits(), np.zeros(10)), ValueError, r"\(5, 10\), but their shape is \(10,\)"),
        (lambda: ops.hinge_loss(logits(), -np.ones((5, 10))), ValueError, "labels must be 0 or 1 .*labels > 0"),
        (lambda: ops.sigmoid_cross_entropy(np.zeros((0, 2)), np.zeros((0, 2))), ValueError, "there are no logits"),
        (lambda: ops.hinge_loss(np.zeros(2, np.int64), 1), TypeError, r"hinge_loss\(.*logits must be floating"),
        (lambda: ops.sigmoid_cross_entropy(logits(), logits()), TypeError, "stop_gradient"),
        (lambda: ops.huber_loss(logits(), np.zeros((5, 1))), ValueError, "must have the same shape"),
        (lambda: ops.huber_loss(logits(), logits(), delta=0), ValueError, "huber_loss.*delta must be above 0"),
        (lambda: ops.huber_loss(np.zeros((0, 2)), np.zeros((0, 2))), ValueError, "no elements"),
    ],
)
def test_losses_refuse_what_does_not_fit(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_accuracy_is_the_share_of_largest_logits_at_the_label():
    x = Tensor(np.array([[0.1, 0.9, 0], [5, 1, 2], [0, 0, 0], [1, 2, 3]]), requires_grad=True)
    assert ops.accuracy(x, [1, 0, 1, 0]) == 0.5
    assert ops.accuracy(x, ops.one_hot([1, 0, 0, 2], 3)) == 1.0
    assert type(ops.accuracy(x, [1, 0, 1, 0])) is float
    with pytest.raises(ValueError, match=r"accuracy: labels must be in 0 \.\.\. 2"):
        ops.accuracy(x, [1, 0, 1, 3])
