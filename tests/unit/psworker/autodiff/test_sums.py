"""Sums over any axes of arrays in any layout: as exact as pairwise addition, and of the shape that numpy gives."""

import math
from itertools import combinations

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops

SEED = 20261122
NEAR = 2e-6  # relative; pairwise addition in float32 errs by some 24 roundings of 6e-8 at most for a million
ROWS = 100_000


def tall(*shape, value=0.1):
    return np.full(shape, value, np.float32)


def layouts(x):
    """The same array in other layouts."""
    gaps = np.zeros((*x.shape, 2), x.dtype)
    gaps[..., 0] = x
    return {"C": x, "F": np.asfortranarray(x), "with gaps": gaps[..., 0], "backward": x[::-1].copy()[::-1]}


def reference(x, axis):
    """The sums in float64, by numpy."""
    return x.astype(np.float64).sum(axis)


@pytest.mark.parametrize("layout", ["C", "F", "with gaps", "backward"])
@pytest.mark.parametrize(
    "shape", [(ROWS,), (ROWS, 1), (ROWS, 4), (2, ROWS // 4, 3), (255, 5), (256, 5), (257, 5), (4, 2**15 + 257)]
)
def test_a_float32_sum_along_any_axis_is_that_of_float64_to_some_roundings(shape, layout):
    numbers = np.random.default_rng(SEED).uniform(0.05, 0.15, shape).astype(np.float32)
    x = layouts(numbers)[layout]
    for axis in range(len(shape)):
        expected = reference(numbers, axis)
        np.testing.assert_allclose(ops.sum(x, axis=axis).value, expected, rtol=NEAR)
        np.testing.assert_allclose(ops.mean(x, axis=axis).value, expected / shape[axis], rtol=NEAR)
    np.testing.assert_allclose(ops.sum(x).value, math.fsum(numbers.reshape(-1)), rtol=NEAR)


X = np.random.default_rng(SEED).integers(-9, 10, (3, 260, 5, 2)).astype(np.float32)


@pytest.mark.parametrize("layout", ["C", "F", "with gaps", "backward"])
@pytest.mark.parametrize(
    "axes", [None, *(axes for n in range(5) for axes in combinations(range(4), n)), 1, -3, (-1, 0)], ids=str
)
def test_sums_of_whole_numbers_are_exact_over_all_axes_in_all_layouts(axes, layout):
    x = layouts(X)[layout]
    for keepdims in (False, True):
        for dtype in (np.float16, np.float32, np.float64):
            y = ops.sum(x.astype(dtype, order="K"), axis=axes, keepdims=keepdims)
            assert y.dtype == dtype
            expected = np.sum(X.astype(np.float64), axis=axes, keepdims=keepdims)
            assert y.shape == expected.shape
            np.testing.assert_array_equal(y.value, expected.astype(dtype))


def stretched(f, *shape):
    """The gradient of an operand of `shape`, and the number that each of its elements must have."""
    x = Tensor(np.full(shape, 0.1, np.float32), requires_grad=True)
    return gradients(f(x), x)[0].reshape(-1)[0]


TENTHS = tall(ROWS, 4)
EXPECTED = ROWS * float(np.float32(0.1))


@pytest.mark.parametrize(
    "sums",
    [
        lambda: stretched(lambda b: (TENTHS + b) * TENTHS, 4),
        lambda: stretched(lambda b: TENTHS * b, 4),
        lambda: stretched(lambda b: TENTHS * b, 1, 4),
        lambda: stretched(lambda b: tall(2, ROWS, 3) * b, 2, 1, 3),
        lambda: stretched(lambda b: tall(ROWS // 4, 4, 2) * b, 2),
        lambda: stretched(lambda b: ops.broadcast_to(b, (ROWS, 4)) * TENTHS, 4),
        lambda: stretched(lambda b: ops.where(np.ones((ROWS, 1), bool), b, 0.0) * TENTHS, 4),
        lambda: stretched(lambda b: ops.mean(TENTHS + b) * (ROWS * 4 * 0.1), 4),
        lambda: stretched(lambda b: ops.conv2d(tall(2, 100, ROWS // 200, 1), tall(1, 1, 1, 4), b) * np.float32(0.1), 4),
        lambda: stretched(lambda b: ops.batch_norm_inference(TENTHS, [0.0] * 4, [1.0] * 4, None, b) * TENTHS, 4),
        lambda: stretched(lambda b: ops.layer_norm(TENTHS, None, b) * TENTHS, 4),
        lambda: ops.einsum("ij,k->k", TENTHS, tall(2, value=0.25)).value[0],
        lambda: ops.exp(ops.logsumexp(np.log(TENTHS), axis=0)).value[0],
        lambda: ops.cumsum(TENTHS, axis=0).value[-1, 0],
        lambda: ops.moments(TENTHS)[0][0] * ROWS,
        lambda: ops.mean_squared_error(TENTHS, 0 * TENTHS).value * (10 * ROWS),
    ],
)
def test_100_000_tenths_are_10_000_wherever_they_are_added(sums):
    assert sums() == pytest.approx(EXPECTED, rel=1.5e-5 if "log" in sums.__code__.co_names else 5e-6)


def test_the_variance_of_numbers_with_a_mean_is_that_of_float64():
    x = np.random.default_rng(SEED).normal(10, 0.1, (100_000, 2)).astype(np.float32)
    mean, variance = ops.moments(x)
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(axis=0), rtol=NEAR)
    np.testing.assert_allclose(variance, x.astype(np.float64).var(axis=0), rtol=1e-5)
    normal = ops.batch_norm(x, epsilon=0.0).value.astype(np.float64)
    np.testing.assert_allclose(normal.mean(axis=0), 0, atol=3e-5)  # a rounding of the mean, over the deviation
    np.testing.assert_allclose(normal.var(axis=0), 1, rtol=1e-5)


def test_softmax_along_the_first_of_many_adds_up_to_one():
    y = ops.softmax(np.random.default_rng(SEED).standard_normal((100_000, 2), np.float32), axis=0).value
    np.testing.assert_allclose(y.astype(np.float64).sum(axis=0), 1, rtol=NEAR)


def test_infinite_and_nan_elements_stay_in_their_own_sums():
    x = tall(1000, 4)
    x[3, 1], x[400, 2] = np.inf, np.nan
    for layout, same in layouts(x).items():
        np.testing.assert_allclose(ops.sum(same, axis=0).value, [100, np.inf, np.nan, 100], rtol=NEAR, err_msg=layout)
