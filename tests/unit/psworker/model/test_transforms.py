"""Gradient transforms, against their definitions in float64."""

import numpy as np
import pytest

import psworker as ps
from pswire.tensors.values import IndexedSlices
from psworker.model.gradient_transforms import Total
from tests.support.combinations import few_fast


def variable(*values):
    return ps.Variable(np.array(values, np.float32))


def slices(values, indices, rows=4, dtype=np.float32):
    values = np.array(values, dtype)
    return IndexedSlices(values, np.array(indices), (rows, *values.shape[1:]))


def dense(gradient):
    return gradient.to_dense() if isinstance(gradient, IndexedSlices) else gradient


def norm(arrays):
    return np.sqrt(sum(np.sum(np.square(array)) for array in arrays))


V = np.float32([[3, 4], [0, 0]])
TWICE = [[1, 2], [5, 5], [2, 2]]  # rows 1, 3 and 1 again: row 1 is (3, 4)
#: Each transform of pairs with the number 3.5, and its definition: of a gradient, its weights, and all gradients.
TRANSFORMS = {
    "clip_by_value": (lambda pairs, x: ps.clip_by_value(pairs, x - 4.5, x), lambda g, w, every: np.clip(g, -1, 3.5)),
    "clip_by_norm": (ps.clip_by_norm, lambda g, w, every: g * min(1, 3.5 / norm([g]))),
    "clip_by_global_norm": (ps.clip_by_global_norm, lambda g, w, every: g * 3.5 / norm(every)),
    "add_decayed_weights": (ps.add_decayed_weights, lambda g, w, every: g + 3.5 * w),
    "multiply": (
        lambda pairs, x: ps.multiply(pairs, dict.fromkeys(ps.trainable_variables(), x)),
        lambda g, w, every: g * 3.5,
    ),
    "no noise": (lambda pairs, x: ps.add_noise(pairs, x * 0), lambda g, w, every: g),
    "scale": (ps.scale, lambda g, w, every: g * 3.5),
    "per_variable": (lambda pairs, x: ps.per_variable(pairs, lambda g, v: g * x), lambda g, w, every: g * 3.5),
    "accumulate": (lambda pairs, x: ps.accumulate(1)(pairs), lambda g, w, every: g),
}


@pytest.mark.parametrize(("transform", "definition"), TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_transform_is_its_definition_keeps_dtypes_and_none_and_writes_into_nothing(transform, definition, dtype):
    variables = [ps.Variable(np.full(shape, 0.5, dtype)) for shape in [(2, 2), (1,), (), (4, 2)]]
    pairs = list(zip([V.astype(dtype), None, dtype(-3), slices(TWICE, [1, 3, 1], dtype=dtype)], variables, strict=True))
    every = [dense(gradient).astype(np.float64) for gradient, _ in pairs if gradient is not None]
    expected = [definition(gradient, 0.5, every) for gradient in every]
    expected[-1][[0, 2]] = 0  # rows without a gradient stay so
    for number in (float, np.float64, np.float32, np.float16):
        found = transform(pairs, number(3.5))
        assert [variable for _, variable in found] == variables
        assert (found[1][0], type(found[3][0])) == (None, IndexedSlices)
        for gradient, wanted in zip([found[place][0] for place in (0, 2, 3)], expected, strict=True):
            assert (gradient.dtype, gradient.shape) == (dtype, wanted.shape)
            np.testing.assert_allclose(dense(gradient), wanted, rtol=2 * np.finfo(dtype).eps)
    np.testing.assert_array_equal([*pairs[0][0], *pairs[3][0].values], [*V, *TWICE])


@pytest.mark.parametrize(
    ("given", "described"),
    [([V], "of type ndarray"), ([(V, V)], r"\(ndarray, ndarray\)"), ([(V, "W")], r"\(ndarray, str\)"), ([(V,)], ".*")],
)
def test_anything_but_pairs_of_gradient_and_variable_is_refused(given, described):
    for transform in (*[transform for transform, _ in TRANSFORMS.values()], lambda pairs, _: ps.global_norm(pairs)):
        with pytest.raises(TypeError, match=rf"must be pairs \(gradient, variable\).* is {described}$"):
            transform(given, 3.5)


def test_gradients_that_are_short_enough_or_not_finite_stay_the_same_pairs():
    for bad in (np.nan, np.inf):  # for the server to refuse
        pairs = [(np.float32([bad, 1]), variable(0, 0)), (np.float32([100]), variable(0))]
        for clipped in (ps.clip_by_global_norm(pairs, 1.0), ps.clip_by_norm(pairs[:1], 1.0)):
            np.testing.assert_array_equal(clipped[0][0], pairs[0][0])
    pairs = [(np.float32([2, 3]), variable(0, 0)), (None, variable(0)), (np.float32(6), variable(0))]
    assert ps.clip_by_global_norm(pairs, 7.5) == pairs
    assert ps.global_norm(pairs) == pytest.approx(7)
    assert ps.global_norm([]) == ps.global_norm([(np.zeros(3, np.float32), variable(0)), (V[:0], variable(0))]) == 0


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
    for one in (gradient, slices(gradient.reshape(3, 1), [0, 3, 1], dtype=dtype)):
        assert ps.global_norm([(one, variable(0))] * 4) == pytest.approx(10 * unit, rel=1e-6, abs=0)
    for clip in (ps.clip_by_norm, ps.clip_by_global_norm):
        [(clipped, _)] = clip([(gradient, variable(0))], unit)
        expected = np.array([0.6 * unit, 0, 0.8 * unit])
        np.testing.assert_allclose(clipped, expected, rtol=1e-3, atol=float(np.finfo(dtype).smallest_subnormal))


def test_norms_of_many_small_and_a_few_large_elements_and_of_float16_are_those_of_float64():
    random = np.random.default_rng(20261122)
    arrays = [np.full(1_000_000, 1e-23, np.float32), np.full(4, 1e-20, np.float32)]
    for some in (arrays, [np.full(1_000_000, 0.1, np.float32)], [random.uniform(0.1, 9, 100_000).astype(np.float16)]):
        expected = norm([array.astype(np.float64) for array in some])
        assert ps.global_norm([(array, variable(0)) for array in some]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("dtype", "size", "max_norm"), [(np.float16, 60000, 1e-3), (np.float32, 1e35, 1e-6)])
def test_clipping_by_a_factor_below_the_range_of_the_dtype_keeps_its_digits(dtype, size, max_norm):
    gradient = np.full((100, 100), size, dtype)
    for transform in (ps.clip_by_norm, ps.clip_by_global_norm):
        for one in (gradient, IndexedSlices(gradient, np.arange(100), (100, 100))):
            [(clipped, _)] = transform([(one, variable(0))], max_norm * 100)
            np.testing.assert_allclose(dense(clipped), np.full((100, 100), max_norm), rtol=float(np.finfo(dtype).eps))


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


def test_accumulate_gives_the_mean_of_n_steps_whatever_their_kind_and_keeps_no_array_of_its_caller():
    """Arrays alone, rows alone, rows with an array at each place, an array now and then, and nothing."""
    variables, random = [variable(*np.zeros((4, 2))) for _ in range(7)], np.random.default_rng(20160513)
    kinds = ["aaa", "rrr", "arr", "rar", "rra", "-a-", "---"]
    accumulated = ps.accumulate(3)
    for _ in range(2):
        totals = np.zeros((7, 4, 2))
        for step in range(3):
            array, rows = random.normal(size=(4, 2)), slices(random.normal(size=(3, 2)), [1, 3, 1])
            of_kind = {"a": np.array(array, np.float32, order="CFC"[step]), "r": rows, "-": None}
            gradients = [of_kind[kind[step]] for kind in kinds]
            for total, gradient in zip(totals, gradients, strict=True):
                total += 0 if gradient is None else dense(gradient)
            pairs = accumulated(zip(gradients, variables, strict=True))
            assert len(pairs) == 7 * (step == 2)
            np.testing.assert_array_equal(of_kind["a"], array.astype(np.float32))
            of_kind["a"][:] = rows.values[:] = np.nan if step < 2 else 0
        assert [mean is None for mean, _ in pairs] == [False] * 6 + [True]
        for (mean, of), total, one in zip(pairs[:6], totals, variables, strict=False):
            assert of is one
            np.testing.assert_allclose(dense(mean), total / 3, rtol=1e-5, atol=1e-6)


def test_accumulate_gives_each_row_once_and_holds_no_more_than_twice_the_table():
    table, steps = variable(*np.zeros((4, 2))), 50
    random = np.random.default_rng(20160513)
    accumulated, expected = ps.accumulate(steps), np.zeros((4, 2))
    for _ in range(steps):
        assert sum(len(rows.indices) for total in accumulated.totals.values() for rows in total.rows) <= 8
        values, indices = random.integers(-9, 10, (3, 2)), random.integers(0, 4, 3)
        np.add.at(expected, indices, values)
        pairs = accumulated([(slices(values, indices), table)])
    [(rows, _)] = pairs
    assert rows.indices.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(rows.to_dense(), expected / steps, rtol=1e-6)
    assert accumulated.totals == {}


@pytest.mark.slow
@pytest.mark.parametrize("value", few_fast([40000, 1]))
def test_sums_of_float16_neither_stall_at_2048_nor_overflow(value):
    rows, array = slices([[value], [0]], [1, 1], rows=2, dtype=np.float16), np.full((2, 1), value, np.float16)
    for gradients in ([array] * 2500, [rows] * 2500, [rows] * 2499 + [array], [array] + [rows] * 2499):
        total = Total()
        for gradient in gradients:
            total.add(gradient)
        mean = total.gradient(1 / 2500)
        assert mean.dtype == np.float16
        np.testing.assert_allclose(dense(mean)[1], [value], rtol=2**-11)


def test_noise_is_seeded_and_changes_only_the_rows_of_a_gradient_by_rows():
    x, y = variable(1, 2), ps.Variable(np.zeros((4, 2), np.float32))
    pairs = [(np.float32([1, 2]), x), (slices(TWICE, [1, 3, 1]), y)]

    def noisy(seed):
        ps.set_random_seed(seed)
        (first, _), (second, _) = ps.add_noise(pairs, 0.25)
        return first.tolist(), second.to_dense().tolist()

    assert noisy(1) == noisy(1) != noisy(2)
    rows = np.array(noisy(1)[1])
    assert (rows[[0, 2]] == 0).all()
    assert (np.abs(rows[[1, 3]] - [[3, 4], [5, 5]]) > 0).all()
    assert (np.abs(rows[[1, 3]] - [[3, 4], [5, 5]]) <= 0.5).all()
    for stddev in (-1, np.nan, np.inf):
        with pytest.raises(ValueError, match="add_noise: stddev must be a finite number from 0 up"):
            ps.add_noise(pairs, stddev)


def test_multiply_changes_only_the_gradients_that_are_named():
    x, y, z = (ps.Variable([0.0], name=name) for name in "xyz")
    found = ps.multiply([(np.float32([value]), v) for value, v in ((3, x), (5, y), (7, z))], {x: 0.5, "z": -2})
    assert [(float(gradient[0]), variable) for gradient, variable in found] == [(1.5, x), (5, y), (-14, z)]
