"""What the rows of `cases_array.py` do not say: pieces, dtypes, and where a gradient must not go."""

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients, ops


def leaf(*values, dtype=np.float64):
    return Tensor(np.array(values, dtype), requires_grad=True)


@pytest.mark.parametrize(("sections", "ends"), [(3, [2, 4]), ([1, 5], [1]), ((0, 6), [0]), ([6], [])])
def test_split_cuts_into_equal_sections_or_sections_of_the_sizes_given(sections, ends):
    x = np.arange(12.0).reshape(2, 6)
    pieces = ops.split(x, sections, axis=-1)
    expected = np.split(x, ends, axis=1)
    assert len(pieces) == len(expected)
    for piece, wanted in zip(pieces, expected, strict=True):
        np.testing.assert_array_equal(piece.value, wanted)


def test_each_piece_of_a_split_gives_its_gradient_to_its_own_place():
    x = Tensor(np.zeros((5, 2)), requires_grad=True)
    first, _, last = ops.split(x, [1, 2, 2])
    [gradient] = gradients([first, last], x, [np.full((1, 2), 7.0), np.full((2, 2), 9.0)])
    np.testing.assert_array_equal(gradient[:, 0], [7, 0, 0, 9, 9])


def test_the_same_tensor_may_be_joined_several_times():
    x = leaf(1, 2)
    [gradient] = gradients(ops.concatenate([x, x, np.zeros(1)]), x, np.array([1.0, 2, 30, 40, 500]))
    np.testing.assert_array_equal(gradient, [31, 42])
    [gradient] = gradients(ops.stack([x, x], axis=1), x, np.array([[1.0, 2], [30, 40]]))
    np.testing.assert_array_equal(gradient, [3, 70])


def test_ids_that_come_several_times_get_the_sum_of_their_gradients():
    x = leaf(1, 2, 3)
    [gradient] = gradients(ops.take(x, [2, 0, -1]), x, np.array([1.0, 10, 100]))
    np.testing.assert_array_equal(gradient, [10, 0, 101])
    q = leaf([1, 2, 3], [4, 5, 6])
    [gradient] = gradients(ops.gather(q, [[2, 2], [0, 1]], batch_dims=1), q, np.array([[1.0, 10], [100, 1000]]))
    np.testing.assert_array_equal(gradient, [[0, 0, 11], [100, 1000, 0]])


@pytest.mark.parametrize("choose", [ops.take, ops.gather, ops.getitem])
def test_ids_of_a_small_dtype_number_more_rows_than_it_counts(choose):
    x = Tensor(np.arange(300.0), requires_grad=True)
    y = choose(x, np.int8([127, -1, -1]))
    np.testing.assert_array_equal(y.value, [127, 299, 299])
    [gradient] = gradients(y, x)
    assert {place: gradient[place] for place in np.flatnonzero(gradient)} == {127: 1, 299: 2}


def test_gather_takes_the_values_of_the_actions_of_a_batch():
    q = leaf([1, 2, 3], [4, 5, 6])
    np.testing.assert_array_equal(ops.gather(q, np.array([2, 0]), batch_dims=1).value, [3, 4])


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_where_did_not_choose_gets_no_gradient_even_if_it_is_not_finite():
    x = leaf(0, 4)
    positive = x.value > 0
    y = ops.where(positive, ops.where(positive, ops.log(ops.where(positive, x, 1)), np.nan), 0)
    np.testing.assert_array_equal(y.value, [0, np.log(4)])
    np.testing.assert_array_equal(gradients(y, x)[0], [0, 0.25])
    nothing = leaf(1, 1)
    [gradient] = gradients(ops.where(positive, x, nothing), nothing, np.array([1.0, np.inf]))
    np.testing.assert_array_equal(gradient, [1, 0])


def test_the_gradient_of_a_cast_comes_back_in_the_dtype_it_came_from():
    x = leaf(1, 2, dtype=np.float32)
    y = ops.cast(x, np.float64)
    [gradient] = gradients(y * np.array([0.1, 0.2]), x)
    assert y.dtype == np.float64
    assert gradient.dtype == np.float32
    np.testing.assert_array_equal(gradient, np.float32([0.1, 0.2]))


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool])
def test_a_cast_to_whole_numbers_is_a_constant(dtype):
    y = ops.cast(leaf(0, 1.9, 2), dtype)
    assert not y.requires_grad
    np.testing.assert_array_equal(y.value, np.array([0, 1, 2], dtype))


def test_a_stretched_tensor_gets_the_sum_over_where_it_went():
    x = leaf([1], [2])
    [gradient] = gradients(ops.broadcast_to(x, (3, 2, 2)), x, np.arange(12.0).reshape(3, 2, 2))
    np.testing.assert_array_equal(gradient, [[0 + 1 + 4 + 5 + 8 + 9], [2 + 3 + 6 + 7 + 10 + 11]])
