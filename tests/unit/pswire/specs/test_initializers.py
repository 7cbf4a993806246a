"""Initial values: arrays with the moments of their papers, and rows that are the same for all who compute them."""

import math
import tracemalloc

import numpy as np
import pytest

from pswire.specs import initializers
from pswire.specs.initializers import RowConstant, RowNormal, RowUniform, fill, rows_of
from tests.support.combinations import few_fast

UNIFORM, NORMAL = 9 / 5, 3  # kurtosis: the fourth moment over the variance squared
# Of a standard normal cut at +-c, with density p at c and probability P between, integration by parts gives the second
# moment 1 - 2 c p / P and the fourth 3 - (2 c^3 + 6 c) p / P; here c = 2.
DENSITY, INSIDE = math.exp(-2) / math.sqrt(2 * math.pi), math.erf(math.sqrt(2))
CUT_VARIANCE = 1 - 4 * DENSITY / INSIDE
CUT = (3 - 28 * DENSITY / INSIDE) / CUT_VARIANCE**2

#: Initializer, mean, variance and kurtosis for shape (300, 200), and the bounds.
RANDOM = {
    "random_uniform": (initializers.random_uniform(-1, 3), 1, 16 / 12, UNIFORM, (-1, 3)),
    "random_normal": (initializers.random_normal(0.5, mean=-7), -7, 0.25, NORMAL, None),
    "truncated_normal": (initializers.truncated_normal(2, mean=5), 5, 4 * CUT_VARIANCE, CUT, (1, 9)),
    "glorot_uniform": (initializers.glorot_uniform(), 0, 2 / 500, UNIFORM, (-math.sqrt(6 / 500), math.sqrt(6 / 500))),
    "glorot_normal": (initializers.glorot_normal(), 0, 2 / 500, NORMAL, None),
    "he_uniform": (initializers.he_uniform(), 0, 2 / 300, UNIFORM, (-math.sqrt(6 / 300), math.sqrt(6 / 300))),
    "he_normal": (initializers.he_normal(), 0, 2 / 300, NORMAL, None),
    "lecun_uniform": (initializers.lecun_uniform(), 0, 1 / 300, UNIFORM, (-0.1, 0.1)),
    "lecun_normal": (initializers.lecun_normal(), 0, 1 / 300, NORMAL, None),
}


def draw(initializer, shape=(300, 200), seed=20100513):
    return initializer(shape, np.random.default_rng(seed))


def check_moments(values, mean, variance, kurtosis):
    """The sample's mean and variance within four standard errors."""
    n, values = values.size, values.astype(np.float64)
    assert abs(values.mean() - mean) < 4 * math.sqrt(variance / n)
    assert abs(np.mean((values - mean) ** 2) - variance) < 4 * variance * math.sqrt((kurtosis - 1) / n)


@pytest.mark.parametrize("name", RANDOM)
def test_arrays_have_the_moments_and_bounds_of_their_distribution_and_any_size(name):
    initializer, mean, variance, kurtosis, bounds = RANDOM[name]
    values = draw(initializer)
    assert (values.shape, values.dtype) == ((300, 200), np.float32)
    check_moments(values, mean, variance, kurtosis)
    if bounds:
        low, high = bounds
        near = (high - low) / 1000
        assert low - near / 1000 <= values.min() < low + near
        assert high - near < values.max() <= high + near / 1000
    np.testing.assert_array_equal(draw(initializer), values)
    assert not np.any(draw(initializer, (4, 3), seed=1) == draw(initializer, (4, 3), seed=2))
    for shape in [(1, 1), (0, 3), (2, 0, 0, 3)]:
        assert draw(initializer, shape).shape == shape
    by_fans = name.startswith(("glorot", "he", "lecun"))
    if by_fans:  # fans count the positions of a kernel
        fans = 5 * 5 * (100 if name.startswith("glorot") else 40)
        check_moments(draw(initializer, (5, 5, 40, 60)), 0, (1 if name.startswith("lecun") else 2) / fans, kurtosis)
        assert repr(initializer) == f"{name}()"
    for shape in [(), (5,)]:
        if by_fans:
            with pytest.raises(ValueError, match=rf"{name}: needs a shape \(\.\.\., inputs, outputs\), got \("):
                draw(initializer, shape)
        else:
            few = draw(initializer, shape)
            assert (type(few), few.shape, few.dtype) == (np.ndarray, shape, np.float32)


def test_constants_are_the_same_everywhere():
    for initializer, value in [(initializers.zeros(), 0), (initializers.ones(), 1), (initializers.constant(0.1), 0.1)]:
        np.testing.assert_array_equal(draw(initializer, (2, 3)), np.full((2, 3), value, np.float32), strict=True)


@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (7, 3), (2, 3, 4), (1, 1)])
def test_the_rows_or_columns_of_an_orthogonal_matrix_whichever_are_fewer_are_orthonormal_times_the_gain(shape):
    values = draw(initializers.orthogonal(2.0), shape)
    assert (values.shape, values.dtype) == (shape, np.float32)
    matrix = values.reshape(-1, shape[-1]).astype(np.float64)
    products = matrix @ matrix.T if len(matrix) <= shape[-1] else matrix.T @ matrix
    np.testing.assert_allclose(products, 4 * np.eye(len(products)), atol=1e-5)


def test_orthogonal_matrices_are_uniform_so_the_elements_of_many_have_mean_0_and_variance_1_over_their_size():
    random = np.random.default_rng(20131220)
    drawn = np.array([initializers.orthogonal()((3, 3), random) for _ in range(2000)])
    # of an element of a uniform vector on a sphere in n dimensions the fourth moment is 3 / (n (n + 2))
    for i, j in np.ndindex(3, 3):
        check_moments(drawn[:, i, j], 0, 1 / 3, (3 / 15) * 9)


def test_an_orthogonal_initializer_draws_each_block_by_itself():
    values = draw(initializers.orthogonal(blocks=2), (4, 8)).astype(np.float64)
    for block in np.split(values, 2, axis=1):
        np.testing.assert_allclose(block @ block.T, np.eye(4), atol=1e-6)
    assert not np.any(values[:, :4] == values[:, 4:])
    with pytest.raises(ValueError, match=r"orthogonal: 3 blocks do not divide the last axis of the shape \(4, 8\)"):
        draw(initializers.orthogonal(blocks=3), (4, 8))
    with pytest.raises(ValueError, match=r"orthogonal: needs a shape \(\.\.\., inputs, outputs\), got \(5,\)"):
        draw(initializers.orthogonal(), (5,))


# --- rows -----------------------------------------------------------------------------------------------------------

EXAMPLES = [RowConstant(), RowConstant(-2.5), RowUniform(-0.1, 0.3), RowUniform(0, 1, 7), RowNormal(0.5, 1, 2**53 - 1)]
every_example = pytest.mark.parametrize("initializer", EXAMPLES, ids=str)


def made(initializer, shape, dtype="float64", first=0):
    out = np.full(shape, np.nan, dtype)
    fill(initializer, out, first)
    return out


def splitmix64(state):
    """Outputs of SplitMix64, one after another, as its authors wrote it: one state, in whole numbers."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        yield z ^ (z >> 31)


@pytest.mark.parametrize("seed", [0, 1, 2**53 - 1])
def test_elements_follow_the_stream_of_their_seed(seed):
    published = splitmix64(1234567)  # by Vigna's splitmix64.c, as Rosetta Code and other implementations list it
    assert [next(published) for _ in range(2)] == [6457827717110365317, 3203168211198807973]
    stream = splitmix64(next(splitmix64(seed)))
    bits = [next(stream) for _ in range(7 * 3)]
    uniform = [-0.1 + (0.3 - -0.1) * (z >> 12) / 2**52 for z in bits]
    normal = [
        2 + 0.5 * math.sqrt(-2 * math.log(((z >> 24) + 0.5) / 2**40)) * math.cos(math.tau * (z % 2**24) / 2**24)
        for z in bits
    ]
    assert made(RowUniform(-0.1, 0.3, seed), (7, 3)).reshape(-1).tolist() == uniform
    np.testing.assert_allclose(made(RowNormal(0.5, 2, seed), (7, 3)).reshape(-1), normal, rtol=1e-15, atol=1e-15)


@every_example
@pytest.mark.parametrize(
    ("dtype", "row_shape"), few_fast([("float16", ()), ("float64", (3, 7)), ("float32", (40_000,))], 2), ids=str
)
def test_a_row_is_the_same_however_the_table_is_divided(initializer, dtype, row_shape, monkeypatch):
    count = 4 if row_shape == (40_000,) else 50
    whole = made(initializer, (count, *row_shape), dtype)
    np.testing.assert_array_equal(whole, made(initializer, (count, *row_shape)).astype(dtype))
    assert np.isfinite(whole).all()
    some = np.random.default_rng(0).integers(0, count, 30)
    for block in (initializers.BLOCK, 5_000, *([1, 64] if count == 50 else [])):
        monkeypatch.setattr(initializers, "BLOCK", block)
        for cut in (0, 1, count - 1):
            parts = [made(initializer, (size, *row_shape), dtype, at) for size, at in ((cut, 0), (count - cut, cut))]
            np.testing.assert_array_equal(np.concatenate(parts), whole)
        np.testing.assert_array_equal(rows_of(initializer, some, row_shape, dtype), whole[some])
    first = 2**50 - 3
    together = made(initializer, (4, *row_shape), dtype, first)
    for kind in (np.int64, np.uint64):
        alone = rows_of(initializer, np.arange(first, first + 4).astype(kind), row_shape, dtype)
        np.testing.assert_array_equal(alone, together)
    for shape in [(0, 3), (3, 0)]:
        assert made(initializer, shape).shape == rows_of(initializer, np.arange(shape[0]), shape[1:]).shape == shape


@pytest.mark.slow
def test_filling_takes_little_memory_beyond_the_array():
    out = np.empty((100_000, 64), np.float32)
    tracemalloc.start()
    fill(RowNormal(1), out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20


@pytest.mark.parametrize(
    ("initializer", "mean", "bound"),
    [(RowUniform(-0.5, 1.5, 3), 0.5, 1.5), (RowNormal(2, -1, 3), -1, 1 + 2 * math.sqrt(2 * 41 * math.log(2)))],
)
def test_all_values_lie_within_the_bound_and_some_come_close(initializer, mean, bound):
    assert initializer.max_magnitude == pytest.approx(bound, rel=1e-15)
    bits = np.array([0, 2**64 - 1, 2**24 - 1, 2**64 - 2**24, 2**23], np.uint64)  # the extremes of both parts
    assert np.abs(initializer.values(bits)).max() <= bound * (1 + 1e-15)
    values = made(initializer, (1000, 100))
    assert np.abs(values).max() <= bound
    assert values.mean() == pytest.approx(mean, abs=0.05)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: initializers.random_uniform(1, 0), "random_uniform: high must be at least low, .* got 1 and 0$"),
        (lambda: RowUniform(-1e308, 1e308), "RowUniform: high must be .* less than infinitely above it"),
        (lambda: RowNormal(1e308), "RowNormal: stddev and mean must give finite values"),
        (lambda: fill(RowUniform(0, 1), np.zeros((2, 2), np.int32)), "rows .* float16, float32, float64, not int32"),
        (lambda: fill(RowUniform(0, 1), np.zeros(())), r"out must be a contiguous array .* at least one axis, .* \(\)"),
        (lambda: fill(RowUniform(0, 1), np.zeros((2, 2)).T[::2]), "out must be a contiguous array"),
        (lambda: fill(RowUniform(0, 1), np.zeros((2, 2)), -1), "first must not be negative, got -1"),
        (lambda: rows_of(RowUniform(0, 1), np.array([0, -1]), (2,)), "row numbers must be non-negative"),
        (lambda: rows_of(RowUniform(0, 1), np.array([[0]]), (2,)), "row numbers .* one-dimensional"),
        (lambda: rows_of(RowUniform(0, 1), np.array([0.0]), (2,)), "row numbers must be integers, but they are float6"),
        (lambda: fill(type("RowOnes", (RowConstant,), {})(1), np.zeros(2)), "servers compute rows with RowConstant, R"),
    ],
)
def test_invalid_arguments_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        make()


@pytest.mark.parametrize(
    ("initializer", "fits"), [(RowConstant(-7e4), 2), (RowUniform(0, 1e39), 1), (RowNormal(1e3, 6e4), 2)], ids=str
)
def test_values_that_a_dtype_cannot_hold_are_refused_and_nothing_is_changed(initializer, fits):
    dtypes = ["float16", "float32", "float64"]
    for dtype in dtypes[:-fits]:
        out, error = np.zeros((2, 3), dtype), rf"^Row.* gives values up to .*, which {dtype} cannot hold"
        with pytest.raises(ValueError, match=error):
            fill(initializer, out)
        with pytest.raises(ValueError, match=error):
            rows_of(initializer, np.arange(2), (3,), dtype)
        assert not out.any()
    assert all(np.isfinite(made(initializer, (2, 3), dtype)).all() for dtype in dtypes[-fits:])
    assert np.isfinite(made(RowUniform(-6e4, 6e4), (2, 3), "float16")).all()
