"""Elementwise ops, reductions, activations and selection at kinks, ties, infinities and far from 0."""

import math

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops

INF, NAN = np.inf, np.nan
FLOATS = [np.float16, np.float32, np.float64]


def leaf(*values, dtype=np.float64):
    return Tensor(np.array(values, dtype), requires_grad=True)


KINKS = [  # an op, its operands, the gradient that comes in (None: ones), and those that come out
    (ops.abs, [[-2, 0, 3]], None, [[-1, 0, 1]]),
    (ops.relu, [[-1, 0, 1]], None, [[0, 0, 1]]),
    (lambda x: ops.leaky_relu(x, 0.25), [[-1, 0, 1]], None, [[0.25, 0.25, 1]]),
    (lambda x: ops.clip(x, 0, 1), [[-1, 0, 1, 2]], None, [[0, 1, 1, 0]]),
    (ops.maximum, [[1, 5, -INF], [1]], [8, 0, 2], [[4, 0, 0], [6]]),
    (ops.minimum, [[1, 5, -INF], [1]], [8, 0, 2], [[4, 0, 2], [4]]),
    (lambda x: ops.maximum(x, -INF), [[1, 5, -INF]], None, [[1, 1, 0.5]]),
    (lambda x: ops.max(x, axis=1), [[[1, 3, 3], [2, 2, 2]]], [1, 6], [[[0, 0.5, 0.5], [2, 2, 2]]]),
    (lambda x: ops.min(x, axis=1), [[[1, 1, 3], [2, 2, 2]]], [1, 6], [[[0.5, 0.5, 0], [2, 2, 2]]]),
    (ops.power, [[0, 0, 0, 2], [0, 1, 2, 0]], None, [[0, 1, 0, 0], [0, 0, 0, math.log(2)]]),
    (ops.power, [[-2], 3], None, [[12]]),
    (lambda x: x[[2, 0, 2]], [[5, 6, 7]], [1, 10, 100], [[10, 0, 101]]),
    (lambda x: ops.take(x, [2, 0, -1]), [[5, 6, 7]], [1, 10, 100], [[10, 0, 101]]),
    (
        lambda q: ops.gather(q, [[2, 2], [0, 1]], batch_dims=1),
        [[[1, 2, 3], [4, 5, 6]]],
        [[1, 10], [100, 1000]],
        [[[0, 0, 11], [100, 1000, 0]]],
    ),
    (lambda x: ops.concatenate([x, x, np.zeros(1)]), [[1, 2]], [1, 2, 30, 40, 500], [[31, 42]]),
    (lambda x: ops.stack([x, x], axis=1), [[1, 2]], [[1, 2], [30, 40]], [[3, 70]]),
    (lambda x: ops.broadcast_to(x, (3, 2, 2)), [[[1], [2]]], np.arange(12.0).reshape(3, 2, 2), [[[27], [39]]]),
]


@pytest.mark.parametrize(("op", "operands", "grad_y", "expected"), KINKS)
def test_gradients_at_kinks_ties_and_repeated_elements(op, operands, grad_y, expected):
    xs = [leaf(*values) if isinstance(values, list) else values for values in operands]
    leaves = [x for x in xs if isinstance(x, Tensor)]
    y = op(*xs)
    found = gradients(y, leaves, None if grad_y is None else np.array(grad_y, float))
    for gradient, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(gradient, wanted)


def test_the_power_of_0_and_the_derivative_of_a_negative_base_by_its_exponent():
    np.testing.assert_array_equal(ops.power(leaf(0, 0, 0, 2), leaf(0, 1, 2, 0)).value, [1, 0, 0, 1])
    exponent = leaf(3)
    with pytest.warns(RuntimeWarning, match="invalid value encountered in log"):
        np.testing.assert_array_equal(gradients(leaf(-2) ** exponent, exponent)[0], [NAN])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponentials_stay_finite_and_precise_far_out(dtype):
    x = leaf(-1e4, -50, 0, 50, 1e4, dtype=dtype)
    small = np.exp(dtype(-50))
    np.testing.assert_allclose(ops.sigmoid(x).value, [0, small, 0.5, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(ops.softmax(x).value, [0, 0, 0, 0, 1])
    np.testing.assert_allclose(ops.log_softmax(x).value, x.value - dtype(1e4))
    y = ops.softplus(x)
    np.testing.assert_allclose(y.value, np.array([0, small, np.log(2), 50, 1e4], dtype), rtol=1e-6)
    np.testing.assert_allclose(gradients(y, x)[0], [0, small, 0.5, 1, 1], rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
def test_logsumexp_of_infinity_and_nan(dtype):
    x = leaf([1e4, 1e4], [-1e4, -1e4], [-INF, 3], [-INF, -INF], [NAN, 3], [-INF, NAN], [INF, 0], dtype=dtype)
    y = ops.logsumexp(x, axis=1)
    log2 = math.log(2)
    np.testing.assert_allclose(y.value, [1e4 + log2, -1e4 + log2, 3, -INF, NAN, NAN, INF], rtol=1e-3)
    expected = [[0.5, 0.5], [0.5, 0.5], [0, 1], [0, 0], [NAN, NAN], [NAN, NAN], [NAN, 0]]
    np.testing.assert_allclose(gradients(y, x)[0], expected, rtol=5e-3)


def test_activations_propagate_nan_and_bound_infinity():
    x = np.array([NAN, -INF, INF])
    np.testing.assert_array_equal(ops.relu(x).value, [NAN, 0, INF])
    np.testing.assert_array_equal(ops.leaky_relu(x).value, [NAN, -INF, INF])
    np.testing.assert_array_equal(ops.sigmoid(x).value, [NAN, 0, 1])


# Dense where erf changes, and from the smallest normal numbers on, where it is 2 / sqrt(pi) * x.
GRID = np.concatenate([np.linspace(-7, 7, 4001), np.logspace(-37, 1, 501), -np.logspace(-37, 1, 501)])


@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 5), (np.float32, 8)])
def test_erf_is_within_a_few_units_in_the_last_place_of_the_standard_library(dtype, bound):
    x = GRID.astype(dtype)
    exact = np.array([math.erf(v) for v in x])
    y = ops.erf(x).value
    assert y.dtype == dtype
    assert np.max(np.abs(y.astype(np.float64) - exact) / np.spacing(np.abs(exact.astype(dtype)))) <= bound
    assert np.max(np.abs(y)) == 1
    np.testing.assert_array_equal(ops.erf(-x).value, -y)


@pytest.mark.parametrize(("sections", "ends"), [(3, [2, 4]), ([1, 5], [1]), ((0, 6), [0]), ([6], [])])
def test_split_cuts_into_equal_sections_or_sections_of_given_sizes(sections, ends):
    x = Tensor(np.arange(12.0).reshape(2, 6), requires_grad=True)
    pieces = ops.split(x, sections, axis=-1)
    for piece, wanted in zip(pieces, np.split(x.value, ends, axis=1), strict=True):
        np.testing.assert_array_equal(piece.value, wanted)
    [gradient] = gradients(pieces[-1], x, np.full(pieces[-1].shape, 7.0))
    np.testing.assert_array_equal(gradient[0], [0] * (6 - pieces[-1].shape[1]) + [7] * pieces[-1].shape[1])


@pytest.mark.parametrize("choose", [ops.take, ops.gather, ops.getitem])
def test_ids_of_a_small_dtype_select_from_more_rows_than_it_counts(choose):
    x = Tensor(np.arange(300.0), requires_grad=True)
    y = choose(x, np.int8([127, -1, -1]))
    np.testing.assert_array_equal(y.value, [127, 299, 299])
    [gradient] = gradients(y, x)
    assert {place: gradient[place] for place in np.flatnonzero(gradient)} == {127: 1, 299: 2}


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_elements_that_where_did_not_select_get_no_gradient_even_if_not_finite():
    x = leaf(0, 4)
    positive = x.value > 0
    y = ops.where(positive, ops.where(positive, ops.log(ops.where(positive, x, 1)), NAN), 0)
    np.testing.assert_array_equal(y.value, [0, np.log(4)])
    np.testing.assert_array_equal(gradients(y, x)[0], [0, 0.25])
    unused = leaf(1, 1)
    np.testing.assert_array_equal(gradients(ops.where(positive, x, unused), unused, [1.0, INF])[0], [1, 0])
