"""Initial values: their moments, bounds and shapes, against the formulas of the papers."""

import math

import numpy as np
import pytest

from pswire.specs import initializers

SEED = 20100513
SHAPE = (300, 200)
KERNEL = (5, 5, 40, 60)


def draw(initializer, shape=SHAPE, seed=SEED):
    return initializer(shape, np.random.default_rng(seed))


def assert_moments(values, mean, variance, kurtosis):
    """The sample's mean and variance within four standard errors; `kurtosis` is the fourth moment over variance^2."""
    n = values.size
    values = values.astype(np.float64)
    assert abs(values.mean() - mean) < 4 * math.sqrt(variance / n)
    assert abs(np.mean((values - mean) ** 2) - variance) < 4 * variance * math.sqrt((kurtosis - 1) / n)


UNIFORM, NORMAL = 9 / 5, 3  # kurtosis
# Of a standard normal cut at +-c, with density p at c and probability P between, integration by parts gives the second
# moment 1 - 2 c p / P and the fourth 3 - (2 c^3 + 6 c) p / P; here c = 2.
DENSITY = math.exp(-2) / math.sqrt(2 * math.pi)
INSIDE = math.erf(math.sqrt(2))
TRUNCATED_VARIANCE = 1 - 4 * DENSITY / INSIDE
TRUNCATED = (3 - 28 * DENSITY / INSIDE) / TRUNCATED_VARIANCE**2


@pytest.mark.parametrize(
    ("initializer", "mean", "variance", "kurtosis"),
    [
        (initializers.random_uniform(-1, 3), 1, 16 / 12, UNIFORM),
        (initializers.random_normal(0.5), 0, 0.25, NORMAL),
        (initializers.random_normal(0.5, mean=-7), -7, 0.25, NORMAL),
        (initializers.truncated_normal(0.1), 0, 0.01 * TRUNCATED_VARIANCE, TRUNCATED),
        (initializers.truncated_normal(2, mean=5), 5, 4 * TRUNCATED_VARIANCE, TRUNCATED),
        (initializers.glorot_uniform(), 0, 2 / (300 + 200), UNIFORM),
        (initializers.glorot_normal(), 0, 2 / (300 + 200), NORMAL),
        (initializers.he_uniform(), 0, 2 / 300, UNIFORM),
        (initializers.he_normal(), 0, 2 / 300, NORMAL),
    ],
)
def test_values_have_the_moments_of_their_distribution(initializer, mean, variance, kurtosis):
    values = draw(initializer)
    assert values.shape == SHAPE
    assert values.dtype == np.float32
    assert_moments(values, mean, variance, kurtosis)


@pytest.mark.parametrize(
    ("initializer", "variance", "kurtosis"),
    [
        (initializers.glorot_uniform(), 2 / (5 * 5 * (40 + 60)), UNIFORM),
        (initializers.glorot_normal(), 2 / (5 * 5 * (40 + 60)), NORMAL),
        (initializers.he_uniform(), 2 / (5 * 5 * 40), UNIFORM),
        (initializers.he_normal(), 2 / (5 * 5 * 40), NORMAL),
    ],
)
def test_the_fans_of_a_convolution_count_the_positions_of_its_kernel(initializer, variance, kurtosis):
    assert_moments(draw(initializer, KERNEL), 0, variance, kurtosis)


@pytest.mark.parametrize(
    ("initializer", "low", "high"),
    [
        (initializers.random_uniform(-1, 3), -1, 3),
        (initializers.truncated_normal(0.1), -0.2, 0.2),
        (initializers.truncated_normal(2, mean=5), 1, 9),
        (initializers.glorot_uniform(), -math.sqrt(6 / 500), math.sqrt(6 / 500)),
        (initializers.he_uniform(), -math.sqrt(6 / 300), math.sqrt(6 / 300)),
    ],
)
def test_values_stay_within_their_bounds_and_come_near_them(initializer, low, high):
    values = draw(initializer)
    rounding = 1e-6 * (high - low)
    assert low - rounding <= values.min() < low + 0.001 * (high - low)
    assert high - 0.001 * (high - low) < values.max() <= high + rounding


def test_constants_are_the_same_everywhere():
    for initializer, value in [(initializers.zeros(), 0), (initializers.ones(), 1), (initializers.constant(0.1), 0.1)]:
        values = draw(initializer, (2, 3))
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, np.full((2, 3), np.float32(value)))


RANDOM = {
    "random_uniform": initializers.random_uniform(-1, 1),
    "random_normal": initializers.random_normal(1),
    "truncated_normal": initializers.truncated_normal(1),
    "glorot_uniform": initializers.glorot_uniform(),
    "glorot_normal": initializers.glorot_normal(),
    "he_uniform": initializers.he_uniform(),
    "he_normal": initializers.he_normal(),
}


@pytest.mark.parametrize("name", RANDOM)
def test_the_generator_alone_decides_the_values(name):
    first, again, other = (draw(RANDOM[name], (4, 3), seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == other)


@pytest.mark.parametrize("shape", [(1, 1), (0, 3), (3, 0), (2, 0, 0, 3)])
@pytest.mark.parametrize("name", RANDOM)
def test_shapes_of_size_0_and_1_are_drawn_too(name, shape):
    values = draw(RANDOM[name], shape)
    assert values.shape == shape
    assert np.isfinite(values).all()


@pytest.mark.parametrize("name", ["random_uniform", "random_normal", "truncated_normal"])
def test_shapes_without_fans_are_drawn_where_none_are_needed(name):
    for shape in [(), (5,)]:
        values = draw(RANDOM[name], shape)
        assert type(values) is np.ndarray
        assert (values.shape, values.dtype) == (shape, np.float32)


@pytest.mark.parametrize("name", ["glorot_uniform", "glorot_normal", "he_uniform", "he_normal"])
def test_a_shape_without_inputs_and_outputs_is_refused_where_fans_are_needed(name):
    with pytest.raises(ValueError, match=rf"{name}: needs a shape \(\.\.\., inputs, outputs\), got \(5,\)"):
        draw(RANDOM[name], (5,))


def test_a_spread_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"random_uniform: high must be at least low, .* got 1 and 0"):
        initializers.random_uniform(1, 0)
    with pytest.raises(ValueError, match="random_normal: stddev must be at least 0 and finite, got -1"):
        initializers.random_normal(-1)
    with pytest.raises(ValueError, match="truncated_normal: stddev must be at least 0 and finite, got nan"):
        initializers.truncated_normal(math.nan)
