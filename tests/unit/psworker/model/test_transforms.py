"""Gradient transforms, against numbers worked out by hand and float64."""

import numpy as np
import pytest

import psworker as ps
from pswire.specs.initializers import rows_of
from pswire.tensors.values import IndexedSlices
from psworker.model.gradient_transforms import Total


def variable(*values, name=None):
    return ps.Variable(np.array(values, np.float32), name=name)


def slices(values, indices, rows=4):
    values = np.array(values, np.float32)
    return IndexedSlices(values, np.array(indices), (rows, *values.shape[1:]))


def dense(gradient):
    return gradient.to_dense() if isinstance(gradient, IndexedSlices) else gradient


V = np.float32([[3, 4], [0, 0]])
TWICE = [[1, 2], [5, 5], [2, 2]]  # rows 1, 3 and 1 again: row 1 is (3, 4)
TRANSFORMS = {  # each with numbers of a given type
    "clip_by_value": lambda pairs, number=float: ps.clip_by_value(pairs, number(-1), number(1)),
    "clip_by_norm": lambda pairs, number=float: ps.clip_by_norm(pairs, number(1)),
    "clip_by_global_norm": lambda pairs, number=float: ps.clip_by_global_norm(pairs, number(1)),
    "add_decayed_weights": lambda pairs, number=float: ps.add_decayed_weights(pairs, number(0.5)),
    "scale": lambda pairs, number=float: ps.scale(pairs, number(0.5)),
    "per_variable": lambda pairs, number=float: ps.per_variable(pairs, lambda g, v: g * number(0.5)),
    "accumulate": lambda pairs, number=int: ps.accumulate(1)(pairs),
}
every_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


@every_transform
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_none_stays_none_numpy_numbers_keep_dtypes_and_nothing_is_written_into(transform, dtype):
    a, b, scalar, table = (ps.Variable(np.ones(shape, dtype)) for shape in [(2, 2), (1,), (), (4, 2)])
    gradient, rows = V.astype(dtype), slices(TWICE, [1, 3, 1]).astype(dtype)
    pairs = [(gradient, a), (None, b), (np.array(3, dtype), scalar), (rows, table)]
    expected = transform(pairs)
    for number in (np.float64, np.float32, np.float16):
        for (found, of), (one, same) in zip(transform(pairs, number), expected, strict=True):
            assert of is same
            assert (found is None) == (of is b)
            if found is not None:
                assert (found.dtype, found.shape, isinstance(found, IndexedSlices)) == (dtype, of.shape, of is table)
                np.testing.assert_array_equal(dense(found), dense(one))
    np.testing.assert_array_equal(gradient, V)
    np.testing.assert_array_equal(rows.values, TWICE)


@pytest.mark.parametrize(
    ("given", "described"),
    [([V], "of type ndarray"), ([(V, V)], r"\(ndarray, ndarray\)"), ([(V, "W")], r"\(ndarray, str\)"), ([(V,)], ".*")],
)
def test_anything_but_pairs_of_gradient_and_variable_is_refused(given, described):
    for transform in (*TRANSFORMS.values(), ps.global_norm):
        with pytest.raises(TypeError, match=rf"must be pairs \(gradient, variable\).* is {described}$"):
            transform(given)


def test_clip_by_value_clips_each_element_and_rows_that_occur_twice_as_their_sum():
    [(clipped, _), (rows, _)] = ps.clip_by_value([(V, variable(0)), (slices(TWICE, [1, 3, 1]), variable(0))], -1, 3.5)
    np.testing.assert_array_equal(clipped, [[3, 3.5], [0, 0]])
    np.testing.assert_array_equal(rows.to_dense(), [[0, 0], [3, 3.5], [0, 0], [3.5, 3.5]])


def test_clip_by_norm_scales_each_gradient_that_is_too_long_and_leaves_the_others():
    long, short = variable([0, 0], [0, 0]), variable(0, 0)
    (clipped, _), (kept, _) = ps.clip_by_norm([(V, long), (np.float32([0.3, 0.4]), short)], 2.5)
    np.testing.assert_allclose(clipped, [[1.5, 2], [0, 0]], rtol=1e-7)
    np.testing.assert_array_equal(kept, np.float32([0.3, 0.4]))


def test_the_global_norm_is_over_all_gradients_with_rows_summed_and_clipping_keeps_their_direction():
    pairs = [(np.float32([2, 3]), variable(0, 0)), (None, variable(0)), (np.float32(6), variable(0))]
    assert ps.global_norm(pairs) == pytest.approx(7)
    (one, _), _, (two, _) = ps.clip_by_global_norm(pairs, 3.5)
    np.testing.assert_allclose([*one, two], [1, 1.5, 3], rtol=1e-7)
    assert ps.clip_by_global_norm(pairs, 7.5) == pairs
    pairs = [(slices(TWICE, [1, 3, 1]), variable(0)), (np.float32([0, 0]), variable(0, 0))]
    assert ps.global_norm(pairs) == pytest.approx(np.sqrt(3**2 + 4**2 + 5**2 + 5**2))
    [(clipped, _), _] = ps.clip_by_global_norm(pairs, 1.0)
    np.testing.assert_allclose(np.linalg.norm(clipped.to_dense()), 1, rtol=1e-6)


SIZES = {
    np.float16: (6e-8, 1e-4, 300, 65504),
    np.float32: (1e-45, 1e-30, 1e-19, 1e19, 3e38),
    np.float64: (5e-324, 1e-170, 1e150, 5e307),
}


@pytest.mark.parametrize(("dtype", "size"), [(dtype, size) for dtype, sizes in SIZES.items() for size in sizes])
def test_no_square_in_a_norm_overflows_or_underflows(dtype, size):
    """Of (3, 4) times a power of two, whose norm is 5 times that power."""
    unit = 2.0 ** min(np.frexp(float(dtype(size)))[1] - 4, 1020)
    unit = max(unit, float(np.finfo(dtype).smallest_subnormal))
    gradient = np.array([3 * unit, 0, 4 * unit], dtype)
    rows = IndexedSlices(gradient.reshape(3, 1), np.array([0, 3, 1]), (4, 1))
    for one in (gradient, rows):
        assert ps.global_norm([(one, variable(0))]) == pytest.approx(5 * unit, rel=1e-6, abs=0)
        assert ps.global_norm([(one, variable(0))] * 4) == pytest.approx(10 * unit, rel=1e-6, abs=0)
    for clip in (ps.clip_by_norm, ps.clip_by_global_norm):
        [(clipped, _)] = clip([(gradient, variable(0))], unit)
        assert clipped.dtype == dtype
        expected = np.array([0.6 * unit, 0, 0.8 * unit])
        np.testing.assert_allclose(clipped, expected, rtol=1e-3, atol=float(np.finfo(dtype).smallest_subnormal))


def test_norms_of_many_small_and_a_few_large_elements_and_of_float16_are_those_of_float64():
    small, large = np.full(1_000_000, 1e-23, np.float32), np.full(4, 1e-20, np.float32)
    assert ps.global_norm([(small, variable(0)), (large, variable(0))]) == pytest.approx(5**0.5 * 1e-20, rel=1e-5)
    assert ps.global_norm([(np.full(1_000_000, 0.1, np.float32), variable(0))]) == pytest.approx(100, rel=1e-6)
    assert ps.global_norm([]) == ps.global_norm([(np.zeros(3, np.float32), variable(0)), (V[:0], variable(0))]) == 0
    gradient = np.random.default_rng(20261122).uniform(0.1, 9, 100_000).astype(np.float16)
    expected = np.linalg.norm(gradient.astype(np.float64))
    assert ps.global_norm([(gradient, variable(0))]) == pytest.approx(expected, rel=1e-6)
    [(clipped, _)] = ps.clip_by_norm([(gradient, variable(0))], expected / 3)
    np.testing.assert_allclose(clipped, gradient.astype(np.float64) / 3, rtol=2.0**-11)


@pytest.mark.parametrize(("dtype", "size", "max_norm"), [(np.float16, 60000, 1e-3), (np.float32, 1e35, 1e-6)])
def test_clipping_by_a_factor_below_the_range_of_the_dtype_keeps_its_digits(dtype, size, max_norm):
    gradient = np.full((100, 100), size, dtype)
    for transform in (ps.clip_by_norm, ps.clip_by_global_norm):
        for one in (gradient, IndexedSlices(gradient, np.arange(100), (100, 100))):
            [(clipped, _)] = transform([(one, variable(0))], max_norm * 100)
            np.testing.assert_allclose(dense(clipped), np.full((100, 100), max_norm), rtol=float(np.finfo(dtype).eps))
            assert clipped.dtype == dtype


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gradients_that_are_not_finite_are_left_for_the_server_to_refuse(bad):
    pairs = [(np.float32([bad, 1]), variable(0, 0)), (np.float32([100]), variable(0))]
    for clipped in (ps.clip_by_global_norm(pairs, 1.0), ps.clip_by_norm(pairs[:1], 1.0)):
        np.testing.assert_array_equal(clipped[0][0], pairs[0][0])


def test_add_decayed_weights_adds_the_gradient_of_the_penalty_to_dense_gradients_and_to_rows_once():
    [(gradient, _)] = ps.add_decayed_weights([(np.float32([0.5, 0.5, 0.5]), variable(1, -2, 4))], 0.25)
    np.testing.assert_array_equal(gradient, [0.75, 0, 1.5])
    weights = variable([1, 1], [2, 2], [3, 3], [4, 4])
    [(rows, _)] = ps.add_decayed_weights([(slices(TWICE, [1, 3, 1]), weights)], 0.5)
    np.testing.assert_array_equal(rows.to_dense(), [[0, 0], [4, 5], [0, 0], [7, 7]])
    table = ps.Table((9, 2), ps.RowUniform(-1, 1, seed=3), name="table")
    before = rows_of(table.initializer, np.arange(9), (2,))
    [(rows, _)] = ps.add_decayed_weights([(slices(TWICE, [1, 3, 1], rows=9), table)], 0.5)
    np.testing.assert_array_equal(rows.indices, [1, 3])
    np.testing.assert_allclose(rows.values, np.float32([[3, 4], [5, 5]]) + 0.5 * before[[1, 3]], rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ps.clip_by_value([], 1, -1), "low must not be above high, got 1 and -1"),
        (lambda: ps.clip_by_value([], float("nan"), 1), "low must not be above high"),
        (lambda: ps.clip_by_norm([], 0), "max_norm must be above 0, got 0"),
        (lambda: ps.clip_by_global_norm([], -1), "clip_by_global_norm: max_norm must be above 0, got -1"),
        (lambda: ps.accumulate(0), "n must be 1 or more, got 0"),
    ],
)
def test_an_invalid_parameter_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_accumulate_gives_the_mean_of_n_steps_after_the_last_of_them():
    a, b, unused = variable(0, 0), variable(0), variable(0)
    steps = [(np.float32([i, 2 * i]), None if i < 3 else np.float32([6])) for i in range(1, 7)]
    accumulated = ps.accumulate(3)
    given = [accumulated([(one, a), (two, b), (None, unused)]) for one, two in steps]
    assert [len(pairs) for pairs in given] == [0, 0, 3, 0, 0, 3]
    for pairs, means in ((given[2], [[2, 4], [2]]), (given[5], [[5, 10], [6]])):  # b: 6 in one step of three
        for (mean, _), expected in zip(pairs, means, strict=False):
            np.testing.assert_allclose(mean, expected, rtol=1e-6)
        assert pairs[2][0] is None


def test_accumulate_keeps_no_array_of_its_caller_and_writes_into_none():
    whole, table = variable([0, 0], [0, 0]), variable(*np.zeros((4, 2)))
    accumulated = ps.accumulate(3)
    for step in range(3):
        gradient, rows = V.copy(), slices(TWICE, [1, 3, 1])
        pairs = accumulated([(gradient, whole), (rows, table)])
        np.testing.assert_array_equal(gradient, V)
        np.testing.assert_array_equal(rows.values, TWICE)
        if step < 2:
            gradient *= 0
            rows.values[:] = 0
            rows.indices[:] = 0
    (mean, _), (mean_rows, _) = pairs
    np.testing.assert_allclose(mean, V, rtol=1e-6)
    np.testing.assert_allclose(mean_rows.to_dense(), [[0, 0], [3, 4], [0, 0], [5, 5]], rtol=1e-6)


def test_accumulate_gives_each_row_once_and_holds_no_more_than_twice_the_table():
    table, steps = variable(*np.zeros((4, 2))), 50
    random = np.random.default_rng(20160513)
    accumulated, expected = ps.accumulate(steps), np.zeros((4, 2))
    for step in range(steps):
        values, indices = random.integers(-9, 10, (3, 2)), random.integers(0, 4, 3)
        np.add.at(expected, indices, values)
        pairs = accumulated([(slices(values, indices), table)])
        if step < steps - 1:
            assert sum(len(rows.indices) for rows in accumulated.totals[table].rows) <= 8
    [(rows, _)] = pairs
    assert rows.indices.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(rows.to_dense(), expected / steps, rtol=1e-6)
    assert accumulated.totals == {}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_accumulate_adds_rows_and_arrays_of_one_variable(place):
    table = variable(*np.zeros((4, 2)))
    rows, array = slices(TWICE, [1, 3, 1]), np.full((4, 2), 3, np.float32, order="F")
    accumulated, steps = ps.accumulate(3), [rows, rows]
    steps.insert(place, array)
    for gradient in steps:
        pairs = accumulated([(gradient, table)])
    np.testing.assert_allclose(pairs[0][0], (2 * rows.to_dense() + 3) / 3, rtol=1e-6)
    assert np.all(array == 3)


def test_sums_of_float16_neither_stall_at_2048_nor_overflow():
    whole, table = ps.Variable(np.zeros(2, np.float16)), ps.Variable(np.zeros((2, 1), np.float16))
    for value in (1, 40000):
        accumulated = ps.accumulate(2500)
        for _ in range(2500):
            rows = IndexedSlices(np.full((1, 1), value, np.float16), np.array([1]), (2, 1))
            pairs = accumulated([(np.full(2, value, np.float16), whole), (rows, table)])
        (mean, _), (mean_rows, _) = pairs
        assert mean.dtype == mean_rows.dtype == np.float16
        np.testing.assert_allclose(mean, np.full(2, value), rtol=2**-11)
        np.testing.assert_allclose(mean_rows.to_dense(), [[0], [value]], rtol=2**-11)
    rows = IndexedSlices(np.ones((2, 1), np.float16), np.array([1, 1]), (2, 1))
    for order in ([rows] * 2000 + [np.ones((2, 1), np.float16)], [np.ones((2, 1), np.float16)] + [rows] * 2000):
        total = Total()
        assert total.gradient() is None
        for gradient in order:
            total.add(gradient)
        found = total.gradient()
        assert found.dtype == np.float16
        np.testing.assert_array_equal(found, [[1], [4000]])  # 4001, rounded to even
