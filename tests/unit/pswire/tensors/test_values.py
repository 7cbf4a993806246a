"""Rows of arrays, encodings and compressions against their definitions; what a network may bring is checked."""

import itertools
import math
import operator

import numpy as np
import pytest

from pswire.specs.encodings import ENCODINGS
from pswire.tensors import compression
from pswire.tensors.compression import (
    ELEMENTS_PER_SCALE,
    FORMS,
    Packed,
    narrow_to_16_bits,
    parts_fit,
    quantize_int8,
    to_16_bits,
    top_k,
)
from pswire.tensors.sums import add_rows, equal_groups
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.support.combinations import few_fast

LARGEST = np.finfo(np.float32).max
NAN = np.uint32([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFF8000]).view(np.float32)
#: Bits of the significand, and the exponents of the smallest step and of the first power of two that is infinite.
FORMATS = {"bfloat16": (8, -133, 128), "float16": (11, -24, 16)}
every_dtype = pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])


def nearest(numbers, form):
    """What each number becomes, float64, by the definition of binary formats; ties to even."""
    bits, smallest, beyond = FORMATS[form]
    exact = numbers.astype(np.float64)
    step = np.maximum(np.frexp(exact)[1] - bits, smallest)
    rounded = np.ldexp(np.rint(np.ldexp(exact, -step)), step)
    return np.where(np.abs(rounded) < 2.0**beyond, rounded, np.copysign(np.inf, rounded))


@pytest.mark.parametrize("form", ENCODINGS)
def test_sixteen_bits_are_the_nearest_number_of_the_form_whatever_the_layout(form):
    """Once all, and once in groups whose squares sum to less than 65,504 squared: those are converted differently."""
    random = np.random.default_rng(1).integers(0, 2**32, 30_000, np.uint32).view(np.float32)
    steps = np.ldexp(np.arange(2 ** (FORMATS[form][0] + 1)), np.arange(FORMATS[form][1] - 1, FORMATS[form][2])[:, None])
    with np.errstate(over="ignore"):
        middle = np.unique(steps.astype(np.float32))
        around = np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))])
    numbers = np.concatenate([random, around, -around, np.float32([LARGEST, -LARGEST, np.inf, 1e-45])])
    numbers = numbers[~np.isnan(numbers)]
    small = np.sort(numbers[np.abs(numbers) < 65504])
    group = np.cumsum(small.astype(np.float64) ** 2) // 65000.0**2
    batches = [numbers, *np.split(small, np.flatnonzero(np.diff(group)) + 1)]
    numbers, found = np.concatenate(batches), np.concatenate([to_16_bits(one, form).unpacked() for one in batches])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, nearest(numbers, form))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(numbers))
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    for array in (table.T, np.zeros((0, 3), np.float32), np.float32(2.5).reshape(())):
        np.testing.assert_array_equal(to_16_bits(array, form).unpacked(), array, strict=True)
    out = np.zeros(8, np.int16)
    narrow_to_16_bits(table[0], out[::2], form)  # into what is not contiguous either
    np.testing.assert_array_equal(to_16_bits(table[0], form).parts[0], out[::2])


@pytest.mark.parametrize(("form", "beyond"), [("bfloat16", (2 - 2.0**-8) * 2.0**127), ("float16", 65520.0)])
def test_a_nan_never_becomes_a_number_and_a_number_beyond_the_largest_of_the_form_is_refused(form, beyond):
    numbers = np.ones(ELEMENTS_PER_SCALE + 100, np.float32)
    numbers[-len(NAN) :] = NAN
    np.testing.assert_array_equal(np.isnan(to_16_bits(numbers, form).unpacked()), np.isnan(numbers))
    with pytest.raises(FloatingPointError, match=f"^{len(NAN)} of {len(numbers):,} elements that are NaN"):
        to_16_bits(numbers, form).check()
    to_16_bits(np.nextafter(np.float32([beyond]), np.float32(0)), form).check()
    with pytest.raises(FloatingPointError, match=r"^1 of 3 elements that are"):
        to_16_bits(np.float32([1, beyond, -1]), form).check()


@pytest.mark.parametrize("form", FORMS)
def test_parts_fit_their_shape_and_no_other_and_any_stretch_of_the_elements_is_that_of_the_whole(form):
    size = 2 * ELEMENTS_PER_SCALE + 321
    array, rest = np.random.default_rng(0).standard_normal(size).astype(np.float32), np.zeros(size, np.float32)
    packers = {"int8": lambda: quantize_int8(array, rest), "topk": lambda: top_k(array, rest, size // 100)}
    one = packers.get(form, lambda: to_16_bits(array, form))()
    specs = tuple(TensorSpec("p", part.shape, part.dtype.name) for part in one.parts)
    assert parts_fit(form, one.shape, specs)
    assert one.nbytes == sum(part.nbytes for part in one.parts)
    wrong = TensorSpec("p", (1,), "float64")
    for other in ((), specs[:-1], (*specs, specs[0]), (*specs[:-1], wrong), (wrong, *specs[1:])):
        assert not parts_fit(form, one.shape, other)
    assert not parts_fit(form, (7,), specs)
    one.check()
    whole, edges = one.unpacked(), [ELEMENTS_PER_SCALE + by for by in (-1, 0, 1, ELEMENTS_PER_SCALE)]
    for start, stop in itertools.combinations([0, 0, 1, 1000, *edges, size - 1, size], 2):
        np.testing.assert_array_equal(one.elements(start, stop), whole[start:stop], strict=True)


def test_int8_is_within_half_a_step_and_what_it_lacks_is_the_rest():
    rng = np.random.default_rng(2)
    array = (rng.standard_normal((3, ELEMENTS_PER_SCALE)) * [[1e-6], [1], [1e6]]).astype(np.float32)
    rest = (rng.standard_normal(array.size) * 1e-7).astype(np.float32)
    c = rest + array.reshape(-1)
    one = quantize_int8(array, rest)
    one.check()
    steps = np.abs(c.reshape(3, -1)).max(axis=1, keepdims=True) / 127
    assert (np.abs(rest.reshape(3, -1)) <= steps * (0.5 + 1e-5)).all()
    np.testing.assert_allclose(one.unpacked().reshape(-1) + rest, c, rtol=1e-6)
    np.testing.assert_allclose(one.parts[1], steps[:, 0], rtol=1e-6)
    assert [np.abs(block).max() for block in one.parts[0]] == [127] * 3
    for scale in (0.0, 1e-45, 1e-38):  # too small for a step: all is residual
        array, rest = np.float32([1, -1, 0.5]) * np.float32(scale), np.zeros(3, np.float32)
        one = quantize_int8(array, rest)
        one.check()
        np.testing.assert_array_equal(one.unpacked(), np.zeros(3))
        np.testing.assert_array_equal(rest, array)


def test_the_sample_for_topk_meets_also_a_single_column_of_large_elements_in_a_matrix_of_width_1024():
    array = np.random.default_rng(1).standard_normal((1024, 1024), dtype=np.float32) * np.float32(1e-3)
    array[:, 0] *= 1000
    low = compression._threshold(array.reshape(-1), np.zeros(array.size, np.float32), 1000)
    assert 1000 <= np.count_nonzero(np.abs(array) >= low) < 10_000


#: Large where the sample is taken, so that it promises far more large elements than there are.
DECEIVING = np.linspace(1e-3, 2e-3, 80_000, dtype=np.float32)
DECEIVING[:: 80_000 // (1 << 14) | 1] += 1
ARRAYS = {
    "normal": np.random.default_rng(3).standard_normal(80_000).astype(np.float32),
    "cauchy": np.random.default_rng(4).standard_cauchy((400, 200)).astype(np.float32),
    "deceiving": DECEIVING,
    "ties": np.tile(np.float32([0, 3, -3, 1]), 20_000),
    "sparse": np.where(np.arange(80_000) % 1000 == 7, np.float32(-2.5), np.float32(0)),
    "zeros": np.zeros(80_000, np.float32),
}


@pytest.mark.parametrize("count", few_fast([800, 1, 80_000]))
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_topk_is_the_largest_of_all_and_the_others_are_the_rest(array, count):
    flat = array.reshape(-1)
    rest = np.zeros(flat.size, np.float32)
    one = top_k(array, rest, count)
    one.check()
    indices, values = one.parts
    order = sorted(np.flatnonzero(flat), key=lambda index: (-abs(flat[index]), index))[:count]
    np.testing.assert_array_equal(indices, sorted(order))
    np.testing.assert_array_equal(values, flat[indices])
    assert (one.shape, indices.dtype) == (array.shape, np.int32)
    np.testing.assert_array_equal(one.unpacked().reshape(-1) + rest, flat)
    assert not np.any(rest[indices])


def test_invalid_parts_are_refused():
    for form, numbers, floats, error, text in (
        ("int8", [1, 2, 3], [math.nan], FloatingPointError, "^3 of 3 elements that are NaN, infinite or too large"),
        ("int8", [-128, 0, 0], [LARGEST / 127], FloatingPointError, "^3 of 3"),
        ("int8", [1, 2, 3], [-1.0], ValueError, "^a step below 0"),
        ("topk", [0, 2], [1.0, math.nan], FloatingPointError, "^1 of 2"),
        ("topk", [0, 3], [1.0, 1.0], ValueError, "^indices from 0 to 3, of 3 elements"),
        ("topk", [-1, 2], [1.0, 1.0], ValueError, "^indices from -1 to 2, of 3 elements"),
        ("topk", [1, 1], [1.0, 1.0], ValueError, "^indices that are not ascending"),
    ):
        indices = np.array(numbers, np.int8 if form == "int8" else np.int32)
        with pytest.raises(error, match=text):
            Packed(form, (3,), (indices, np.float32(floats))).check()


def test_indices_have_64_bits_from_2_to_the_31_elements_on():
    for size, index in itertools.product((2**31 - 1, 2**31), ("int32", "int64")):
        specs = TensorSpec("p", (1,), index), TensorSpec("v", (1,), "float32")
        assert parts_fit("topk", (size,), specs) == (index == ("int64" if size == 2**31 else "int32"))
    far = Packed("topk", (2**40,), (np.int64([5, 2**39]), np.float32([1, -2])))
    far.check()
    np.testing.assert_array_equal(far.elements(2**39 - 1, 2**39 + 2), [0, -2, 0])


# --- rows of arrays ---------------------------------------------------------------------------------------------------


def dense(rows):
    """The whole array, by a plain loop."""
    array = np.zeros(rows.dense_shape)
    for index, row in zip(rows.indices.tolist(), rows.values.astype(np.float64), strict=True):
        array[index] += row
    return array


@every_dtype
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 2), (7, 0)], ids=str)
def test_summed_rows_are_the_same_array_with_each_index_once_in_rising_order(dtype, shape):
    random = np.random.default_rng(20160513)
    for count in (0, 1, 40):
        values = random.integers(-9, 10, (count, *shape[1:])).astype(dtype)  # sums that every dtype holds exactly
        rows = IndexedSlices(values, random.integers(0, 7, count), shape)
        given, summed = values.copy(), rows.summed()
        assert summed.indices.tolist() == sorted(set(rows.indices.tolist()))
        assert (summed.dtype, summed.dense_shape) == (np.dtype(dtype), shape)
        for whole in (dense(summed), summed.to_dense(), rows.to_dense()):
            np.testing.assert_array_equal(whole, dense(rows))
        np.testing.assert_array_equal(rows.values, given)


def test_equal_indices_keep_their_order_however_large_they_are():
    for kind, index in itertools.product(("int64", "uint64"), ((1 << 59) - 1, 1 << 59, 1 << 60, (1 << 63) - 1)):
        order, begins = equal_groups(np.array([index, 5, index, 0, 5, index, 7, index - 1], kind))
        assert order.tolist() == [3, 1, 4, 6, 7, 0, 2, 5]
        assert np.flatnonzero(begins).tolist() == [0, 1, 3, 4, 5]


def test_invalid_shapes_and_indices_are_refused_and_a_range_also_when_it_is_checked_later():
    for values, indices, shape, error, text in (
        ((2, 3), [0, 1], (4, 2), ValueError, "need values"),
        ((2, 2), [0], (4, 2), ValueError, "need values"),
        ((2, 2), [[0, 1]], (4, 2), ValueError, "need values"),
        ((2, 2), 0, (4, 2), ValueError, "need values"),
        ((2,), [0, 1], (), ValueError, "need values"),
        ((2, 2), [0.0, 1.0], (4, 2), TypeError, "indices must be integers"),
        ((2, 2), [True, False], (4, 2), TypeError, "indices must be integers"),
        ((2, 2), [2, -1], (4, 2), ValueError, r"indices must be in 0 \.\.\. 3, but they span -1 \.\.\. 2"),
        ((2, 2), [2, 4], (4, 2), ValueError, r"indices must be in 0 \.\.\. 3, but they span 2 \.\.\. 4"),
    ):
        for check_range in (True, False):
            with pytest.raises(error, match=f"^IndexedSlices: .*{text}"):
                IndexedSlices(np.ones(values), np.array(indices), shape, check_range).check_indices()


def some_rows(dtype=np.float32):
    return IndexedSlices(np.array([[1, 2], [4, 8], [16, 32]], dtype), np.array([1, 3, 1]), (4, 2))


@every_dtype
def test_rows_times_or_over_a_number_keep_their_dtype_and_other_factors_are_refused(dtype):
    rows, half = some_rows(dtype), np.float64(0.5)
    scaled = [(rows * 0.5, 0.5), (0.5 * rows, 0.5), (rows * half, 0.5), (half * rows, 0.5), (np.int64(3) * rows, 3)]
    for result, factor in (*scaled, (rows / 2, 0.5), (rows / np.float64(2), 0.5), (-rows, -1)):
        assert result.dtype == dtype
        np.testing.assert_array_equal(dense(result), factor * dense(rows))
    np.testing.assert_array_equal(rows.values, some_rows(dtype).values)
    for other in (np.ones(2), "a", None, [1.0]):
        for operation in (lambda x: rows * x, lambda x: x * rows, lambda x: rows / x):
            with pytest.raises(TypeError):
                operation(other)


def test_rows_plus_an_array_is_an_array_of_its_own_on_either_side_and_both_shapes_are_named_if_they_differ():
    rows = some_rows()
    for order, dtype in itertools.product("CF", ("float32", "float64")):
        array = np.arange(8, dtype=dtype).reshape(4, 2, order=order)
        given = array.copy()
        for total in (rows + array, array + rows):
            assert total.dtype == dtype
            np.testing.assert_array_equal(total, given + dense(rows))
        np.testing.assert_array_equal(array, given)
    np.testing.assert_array_equal(dense(rows + rows), 2 * dense(rows))
    for other in (IndexedSlices(np.ones((1, 2)), np.array([9]), (40, 2)), np.ones((10, 3)), np.ones((4, 1)), 0.0):
        kind = "rows of an array" if isinstance(other, IndexedSlices) else "an array"
        for pair in ((other, rows), (rows, other)):
            with pytest.raises(ValueError, match="plus") as caught:
                operator.add(*pair)
        assert str(caught.value).endswith(f"of shape (4, 2) plus {kind} of shape {np.shape(other)}")


def test_add_rows_of_float16_takes_an_index_and_its_negative_as_one_row_that_is_rounded_once():
    total = np.array([[0], [2048]], np.float16)
    add_rows(total, np.array([-1, 1, -2, 0]), np.array([[1], [1], [3], [4]], np.float16))
    assert total.tolist() == [[7], [2050]], "2049 would be rounded to 2048"


def test_add_rows_adds_each_row_at_its_index_and_refuses_what_it_cannot_add_in_place():
    random = np.random.default_rng(20160513)
    indices_of = ((0, "int8", 0), (1, "int8", -5), (30, "int8", -5), (30, "uint64", 0))
    for shape, (count, dtype, low) in itertools.product([(5,), (5, 2, 4), (5, 0)], indices_of):
        indices = random.integers(low, 5, count).astype(dtype)
        total, rows = random.standard_normal(shape), random.standard_normal((2 * count, *shape[1:]))[::2]
        expected = total.copy()
        for index, row in zip(indices.tolist(), rows, strict=True):
            expected[index] += row
        add_rows(total, indices, rows)
        np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-12)
    for total, indices, rows, error in (
        (np.zeros((4, 2), order="F"), [0], (1, 2), ValueError),
        (np.zeros((4, 2)), [0], (1, 3), ValueError),
        (np.zeros((4, 2)), [[0]], (1, 2), ValueError),
        (np.zeros(()), [0], (1,), ValueError),
        (np.zeros((4, 2)), [4], (1, 2), IndexError),
        (np.zeros((4, 2)), [-5], (1, 2), IndexError),
    ):
        with pytest.raises(error):
            add_rows(total, np.array(indices), np.ones(rows))
        assert not total.any()
