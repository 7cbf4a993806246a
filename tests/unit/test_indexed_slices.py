"""Rows of an array: what they may be, and what they are when they are added up."""

import numpy as np
import pytest

from pswire.values import IndexedSlices

SEED = 20160513


def dense(rows):
    """The whole array, by a plain loop."""
    array = np.zeros(rows.dense_shape)
    for index, row in zip(rows.indices.tolist(), rows.values.astype(np.float64), strict=True):
        array[index] += row
    return array


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 2), (7, 0)], ids=str)
@pytest.mark.parametrize("count", [0, 1, 2, 5, 40])
def test_summed_rows_are_the_same_array_with_each_index_once_in_rising_order(dtype, shape, count):
    random = np.random.default_rng([SEED, count])
    values = random.integers(-9, 10, (count, *shape[1:])).astype(dtype)  # sums that every dtype holds exactly
    rows = IndexedSlices(values, random.integers(0, 7, count), shape)
    given = values.copy()
    summed = rows.summed()
    assert summed.indices.tolist() == sorted(set(rows.indices.tolist()))
    assert (summed.dtype, summed.dense_shape) == (np.dtype(dtype), shape)
    np.testing.assert_array_equal(dense(summed), dense(rows))
    np.testing.assert_array_equal(summed.to_dense(), dense(rows))
    np.testing.assert_array_equal(rows.values, given)


@pytest.mark.parametrize(
    "indices",
    [[0, 0, 0, 0], [0, 1, 2, 3], [3, 2, 1, 0], [1, 1, 0, 3], [0, 1, 3, 3], [3, 3, 0, 0], [2, 0, 2, 1], [0, 2, 2, 3]],
    ids=str,
)
def test_rows_alone_first_last_and_between_are_summed(indices):
    rows = IndexedSlices(np.float64([[1, 10], [2, 20], [4, 40], [8, 80]]), np.array(indices), (4, 2))
    np.testing.assert_array_equal(dense(rows.summed()), dense(rows))
    assert len(rows.summed().indices) == len(set(indices))


def test_rows_that_are_summed_already_are_given_back_as_they_are():
    rows = IndexedSlices(np.ones((3, 2)), np.array([0, 2, 5]), (6, 2))
    assert rows.summed() is rows


@pytest.mark.parametrize(("index", "span"), [(-1, r"-1 \.\.\. 2"), (6, r"2 \.\.\. 6")])
def test_an_index_outside_is_refused_at_once_or_when_asked_for(index, span):
    values, indices = np.ones((2, 2)), np.array([2, index])
    with pytest.raises(ValueError, match=rf"indices must be in 0 \.\.\. 5, but they span {span}"):
        IndexedSlices(values, indices, (6, 2))
    unchecked = IndexedSlices(values, indices, (6, 2), check_range=False)
    with pytest.raises(ValueError, match=rf"indices must be in 0 \.\.\. 5, but they span {span}"):
        unchecked.check_indices()


@pytest.mark.parametrize(
    ("values", "indices", "shape", "error"),
    [
        (np.ones((2, 3)), np.array([0, 1]), (4, 2), ValueError),
        (np.ones((2, 2)), np.array([0]), (4, 2), ValueError),
        (np.ones((2, 2)), np.array([[0, 1]]), (4, 2), ValueError),
        (np.ones((2, 2)), np.array(0), (4, 2), ValueError),
        (np.ones(2), np.array([0, 1]), (), ValueError),
        (np.ones((2, 2)), np.array([0.0, 1.0]), (4, 2), TypeError),
        (np.ones((2, 2)), np.array([True, False]), (4, 2), TypeError),
    ],
)
def test_shapes_that_do_not_fit_and_indices_that_are_no_integers_are_refused_also_unchecked(
    values, indices, shape, error
):
    for check_range in (True, False):
        with pytest.raises(error, match=r"^IndexedSlices: "):
            IndexedSlices(values, indices, shape, check_range)
