"""What the rows of `cases_math.py` and `cases_reductions.py` do not say: kinks, ties, infinities and precision."""

import math

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops

INF = np.inf


def leaf(*values, dtype=np.float64):
    return Tensor(np.array(values, dtype), requires_grad=True)


def units_in_the_last_place(got, exact):
    return np.max(np.abs(got.astype(np.float64) - exact) / np.spacing(np.abs(exact.astype(got.dtype))))


# Dense where erf changes, and from the smallest normal numbers on, where it is 2 / sqrt(pi) * x.
GRID = np.concatenate([np.linspace(-7, 7, 28001), np.logspace(-37, 1, 2001), -np.logspace(-37, 1, 2001)])


@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 5), (np.float32, 8)])
def test_erf_is_within_a_few_units_in_the_last_place_of_the_standard_library(dtype, bound):
    x = GRID.astype(dtype)
    exact = np.array([math.erf(v) for v in x])
    y = ops.erf(x).value
    assert y.dtype == dtype
    assert units_in_the_last_place(y, exact) <= bound
    assert np.max(np.abs(y)) == 1
    np.testing.assert_array_equal(ops.erf(-x).value, -y)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_erf_knows_infinity_and_nan(dtype):
    y = ops.erf(np.array([-INF, -0.0, 0, INF, np.nan], dtype)).value
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, [-1, -0.0, 0, 1, np.nan])
    np.testing.assert_array_equal(np.signbit(y[:3]), [True, True, False])


OF_REAL_NUMBERS = [
    *(ops.erf, ops.exp, ops.gelu, ops.log, ops.log_softmax, ops.logsumexp),
    *(ops.sigmoid, ops.softmax, ops.softplus, ops.sqrt, ops.tanh),
]


@pytest.mark.parametrize("op", OF_REAL_NUMBERS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, bool])
def test_functions_of_real_numbers_take_integers_for_float32(op, dtype):
    x = np.array([1, 3, 20, 80], dtype)
    y = op(x).value
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, op(x.astype(np.float32)).value)


@pytest.mark.parametrize("loss", [ops.huber_loss, ops.mean_squared_error])
def test_losses_take_the_difference_of_unsigned_integers_below_0_too(loss):
    y = loss(np.uint8([0, 3]), np.uint8([200, 1]))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y.value, loss(np.array([0.0, 3]), np.array([200.0, 1])).value, rtol=1e-6)
    assert loss(np.ones(2, np.float32), np.array([1, 2])).dtype == np.float32


HALF = np.float16


@pytest.mark.parametrize(
    ("op", "x", "expected"),
    [
        (ops.mean, np.full(70_000, 2, HALF), 2),
        (ops.sum, np.ones((5_000, 3), HALF), 15_000),
        (lambda x: ops.sum(x, axis=0)[0], np.ones((5_000, 3), HALF), 5_000),
        (lambda x: ops.cumsum(x)[-1], np.ones(5_000, HALF), 5_000),
        (ops.logsumexp, np.zeros(70_000, HALF), math.log(70_000)),
        (lambda x: ops.softmax(x, 0)[0, 0] * 5_000, np.zeros((5_000, 2), HALF), 1),
        (lambda x: ops.log_softmax(x, 0)[0, 0], np.zeros((5_000, 2), HALF), -math.log(5_000)),
        (lambda x: ops.mean_squared_error(x, np.zeros(5_000, HALF)), np.full(5_000, 4, HALF), 16),
        (lambda x: ops.huber_loss(x, np.zeros(70_000, HALF)), np.full(70_000, 4, HALF), 3.5),
        (lambda x: ops.hinge_loss(x, 0), np.full(70_000, 4, HALF), 5),
        (lambda x: ops.sigmoid_cross_entropy(x, 0), np.zeros(70_000, HALF), math.log(2)),
        (lambda x: ops.softmax_cross_entropy(x, np.zeros(70_000, int)), np.zeros((70_000, 2), HALF), math.log(2)),
        (lambda x: ops.softmax_cross_entropy(x, np.full(x.shape, 0.5, HALF)), np.zeros((9_000, 100), HALF), 230.2585),
    ],
)
def test_what_sums_float16_does_so_in_float32_and_gives_float16_back(op, x, expected):
    x = Tensor(x, requires_grad=True)
    y = op(x)
    assert y.dtype == HALF
    np.testing.assert_allclose(y.value, expected, rtol=2e-3)
    [gradient] = gradients(y, x)
    assert gradient.dtype == HALF
    wide = Tensor(x.value.astype(np.float32), requires_grad=True)
    np.testing.assert_allclose(gradient, gradients(op(wide), wide)[0], rtol=2e-3, atol=1e-7)


def test_beside_float16_the_first_tensor_decides_the_dtype():
    half, single = np.ones(2, HALF), np.ones(2, np.float32)
    assert ops.mean_squared_error(half, np.ones(2, int)).dtype == HALF
    assert ops.mean_squared_error(single, half).dtype == ops.batch_norm(single, half).dtype == np.float32
    for y in (ops.batch_norm(half, single), ops.layer_norm(half, single)):
        assert y.dtype == HALF
    assert ops.batch_norm_inference(half, single, single, single, single).dtype == HALF


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softplus_stays_finite_and_precise_far_out(dtype):
    x = leaf(-1e4, -50, 0, 50, 1e4, dtype=dtype)
    y = ops.softplus(x)
    np.testing.assert_allclose(y.value, np.array([0, np.exp(-50), np.log(2), 50, 1e4], dtype), rtol=1e-6)
    np.testing.assert_allclose(gradients(y, x)[0], [0, np.exp(-50), 0.5, 1, 1], rtol=1e-6)


def test_logsumexp_stays_finite_and_precise_far_out():
    x = leaf([1e4, 1e4], [-1e4, -1e4], [0, -1e4])
    y = ops.logsumexp(x, axis=1)
    np.testing.assert_allclose(y.value, [1e4 + math.log(2), -1e4 + math.log(2), 0])
    np.testing.assert_allclose(gradients(y, x)[0], [[0.5, 0.5], [0.5, 0.5], [1, 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logsumexp_of_minus_infinity_adds_nothing(dtype):
    x = leaf([-INF, 3], [-INF, -INF], dtype=dtype)
    y = ops.logsumexp(x, axis=1)
    np.testing.assert_array_equal(y.value, [3, -INF])
    np.testing.assert_array_equal(gradients(y, x)[0], [[0, 1], [0, 0]])
    np.testing.assert_array_equal(ops.logsumexp(np.array([INF, 5, -INF])).value, INF)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_gradient_of_logsumexp_over_nan_is_nan_for_all_that_it_is_over(dtype):
    """As in PyTorch; of rows beside it nothing is seen."""
    x = leaf([math.nan, 3], [2, 2], [-INF, math.nan], [INF, 0], dtype=dtype)
    y = ops.logsumexp(x, axis=1)
    np.testing.assert_allclose(y.value, [math.nan, 2 + math.log(2), math.nan, INF], rtol=1e-3)
    [gradient] = gradients(y, x)
    np.testing.assert_allclose(gradient, [[math.nan] * 2, [0.5, 0.5], [math.nan] * 2, [math.nan, 0]], rtol=1e-3)


@pytest.mark.parametrize("op", [ops.maximum, ops.minimum])
def test_at_a_tie_maximum_and_minimum_give_half_of_the_gradient_to_each(op):
    a, b = leaf(1, 5, -INF), leaf(1)
    grad_y = np.array([8.0, 0, 2])
    a_gradient, b_gradient = gradients(op(a, b), [a, b], grad_y)
    smaller_gets = 2 if op is ops.minimum else 0
    np.testing.assert_array_equal(a_gradient, [4, 0, smaller_gets])
    np.testing.assert_array_equal(b_gradient, [4 + 2 - smaller_gets])
    np.testing.assert_array_equal(gradients(op(a, -INF), a)[0], [0, 0, 0.5] if op is ops.minimum else [1, 1, 0.5])


def test_equal_smallest_elements_share_the_gradient_of_min():
    x = leaf([1, 1, 3], [2, 2, 2])
    [gradient] = gradients(ops.min(x, axis=1), x, np.array([1.0, 6]))
    np.testing.assert_array_equal(gradient, [[0.5, 0.5, 0], [2, 2, 2]])


def test_abs_has_derivative_0_at_0():
    x = leaf(-2, 0, 3)
    np.testing.assert_array_equal(gradients(ops.abs(x), x)[0], [-1, 0, 1])


def test_the_power_at_base_0_and_exponent_0():
    x, exponent = leaf(0, 0, 0, 2), leaf(0, 1, 2, 0)
    y = x**exponent
    np.testing.assert_array_equal(y.value, [1, 0, 0, 1])
    x_gradient, exponent_gradient = gradients(y, [x, exponent])
    np.testing.assert_array_equal(x_gradient, [0, 1, 0, 0])
    np.testing.assert_array_equal(exponent_gradient, [0, 0, 0, np.log(2)])


def test_a_negative_base_has_a_derivative_by_itself_and_none_by_the_exponent():
    x, exponent = leaf(-2), leaf(3)
    np.testing.assert_array_equal(gradients(x**exponent, x)[0], [12])
    with pytest.warns(RuntimeWarning, match="invalid value encountered in log"):
        np.testing.assert_array_equal(gradients(x**exponent, exponent)[0], [np.nan])
