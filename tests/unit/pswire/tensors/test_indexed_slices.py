"""IndexedSlices: validation, arithmetic and sums of rows."""

import numpy as np
import pytest

from pswire.tensors.sums import add_rows, equal_groups
from pswire.tensors.values import IndexedSlices

SEED = 20160513
every_dtype = pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])


def dense(rows):
    """The whole array, by a plain loop."""
    array = np.zeros(rows.dense_shape)
    for index, row in zip(rows.indices.tolist(), rows.values.astype(np.float64), strict=True):
        array[index] += row
    return array


@every_dtype
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 2), (7, 0)], ids=str)
def test_summed_rows_are_the_same_array_with_each_index_once_in_rising_order(dtype, shape):
    random = np.random.default_rng(SEED)
    for count in (0, 1, 40):
        values = random.integers(-9, 10, (count, *shape[1:])).astype(dtype)  # sums that every dtype holds exactly
        rows = IndexedSlices(values, random.integers(0, 7, count), shape)
        given, summed = values.copy(), rows.summed()
        assert summed.indices.tolist() == sorted(set(rows.indices.tolist()))
        assert (summed.dtype, summed.dense_shape) == (np.dtype(dtype), shape)
        for whole in (dense(summed), summed.to_dense(), rows.to_dense()):
            np.testing.assert_array_equal(whole, dense(rows))
        np.testing.assert_array_equal(rows.values, given)


@pytest.mark.parametrize("index", [(1 << 59) - 1, 1 << 59, 1 << 60, (1 << 63) - 1], ids=hex)
def test_equal_indices_keep_their_order_however_large_they_are(index):
    for kind in ("int64", "uint64"):
        order, begins = equal_groups(np.array([index, 5, index, 0, 5, index, 7, index - 1], kind))
        assert order.tolist() == [3, 1, 4, 6, 7, 0, 2, 5]
        assert np.flatnonzero(begins).tolist() == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(
    ("values", "indices", "shape", "error", "text"),
    [
        ((2, 3), [0, 1], (4, 2), ValueError, "need values"),
        ((2, 2), [0], (4, 2), ValueError, "need values"),
        ((2, 2), [[0, 1]], (4, 2), ValueError, "need values"),
        ((2, 2), 0, (4, 2), ValueError, "need values"),
        ((2,), [0, 1], (), ValueError, "need values"),
        ((2, 2), [0.0, 1.0], (4, 2), TypeError, "indices must be integers"),
        ((2, 2), [True, False], (4, 2), TypeError, "indices must be integers"),
        ((2, 2), [2, -1], (4, 2), ValueError, r"indices must be in 0 \.\.\. 3, but they span -1 \.\.\. 2"),
        ((2, 2), [2, 4], (4, 2), ValueError, r"indices must be in 0 \.\.\. 3, but they span 2 \.\.\. 4"),
    ],
)
def test_invalid_shapes_and_indices_are_refused_and_a_range_also_when_it_is_checked_later(
    values, indices, shape, error, text
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


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_plus_an_array_is_an_array_of_its_own_on_either_side(order, dtype):
    array = np.arange(8, dtype=dtype).reshape(4, 2, order=order)
    given = array.copy()
    for total in (some_rows() + array, array + some_rows()):
        assert total.dtype == dtype
        np.testing.assert_array_equal(total, given + dense(some_rows()))
    np.testing.assert_array_equal(array, given)
    np.testing.assert_array_equal(dense(some_rows() + some_rows()), 2 * dense(some_rows()))


def test_a_sum_of_other_shapes_is_refused_and_both_are_named():
    for other in (IndexedSlices(np.ones((1, 2)), np.array([9]), (40, 2)), np.ones((10, 3)), np.ones((4, 1)), 0.0):
        kind = "rows of an array" if isinstance(other, IndexedSlices) else "an array"
        for add in (lambda other=other: other + some_rows(), lambda other=other: some_rows() + other):
            with pytest.raises(ValueError, match="plus") as caught:
                add()
        assert str(caught.value).endswith(f"of shape (4, 2) plus {kind} of shape {np.shape(other)}")


@pytest.mark.parametrize("shape", [(5,), (5, 2, 4), (5, 0)], ids=str)
def test_add_rows_adds_each_row_at_its_index(shape):
    random = np.random.default_rng(SEED)
    for count, dtype, low in ((0, "int8", 0), (1, "int8", -5), (30, "int8", -5), (30, "uint64", 0)):
        indices = random.integers(low, 5, count).astype(dtype)
        total, rows = random.standard_normal(shape), random.standard_normal((2 * count, *shape[1:]))[::2]
        expected = total.copy()
        for index, row in zip(indices.tolist(), rows, strict=True):
            expected[index] += row
        add_rows(total, indices, rows)
        np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("total", "indices", "rows", "error"),
    [
        (np.zeros((4, 2), order="F"), [0], (1, 2), ValueError),
        (np.zeros((4, 2)), [0], (1, 3), ValueError),
        (np.zeros((4, 2)), [[0]], (1, 2), ValueError),
        (np.zeros(()), [0], (1,), ValueError),
        (np.zeros((4, 2)), [4], (1, 2), IndexError),
        (np.zeros((4, 2)), [-5], (1, 2), IndexError),
    ],
)
def test_add_rows_refuses_what_it_cannot_add_in_place(total, indices, rows, error):
    with pytest.raises(error):
        add_rows(total, np.array(indices), np.ones(rows))
    assert not total.any()
