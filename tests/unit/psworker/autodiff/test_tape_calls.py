"""The tape at its edges: gradients that are rows, ops of any number of tensors, and calls that are wrong."""

import numpy as np
import pytest

from pswire.tensors.values import IndexedSlices
from psworker.autodiff import Tensor, gradients, op, ops


def leaf(*values):
    return Tensor(np.array(values), requires_grad=True)


# Rows.


def test_rows_from_one_op_stay_rows_and_are_added_up_with_rows_or_an_array():
    @op
    def first_row(x, /):
        return x[0], (lambda g: IndexedSlices(g[np.newaxis], np.array([0]), x.shape),)

    x = leaf([1.0, 2.0], [3.0, 4.0])
    [rows] = gradients(first_row(x) * 3, x)
    assert isinstance(rows, IndexedSlices)
    np.testing.assert_array_equal(rows.to_dense(), [[3, 3], [0, 0]])
    [rows] = gradients([first_row(x), first_row(x) * 2], x)
    assert isinstance(rows, IndexedSlices)
    np.testing.assert_array_equal(rows.to_dense(), [[3, 3], [0, 0]])
    for ys in ([first_row(x), x * 5], [x * 5, first_row(x)], [x * 5, x * 1, first_row(x), x * 0]):
        [whole] = gradients(ys, x)
        assert isinstance(whole, np.ndarray)
        np.testing.assert_array_equal(whole[1] + 1, whole[0])
    [through] = gradients(first_row(x * 2), x)
    np.testing.assert_array_equal(through, [[2, 2], [0, 0]])


def test_rows_belong_to_the_caller():
    @op
    def first_row(x, /):
        return x[0], (lambda g: IndexedSlices(g[np.newaxis], np.array([0]), x.shape),)

    x = leaf([1.0, 2.0], [3.0, 4.0])
    row = first_row(x)
    weights = np.array([5.0, 6.0])
    one, two = gradients(row, [x, x], weights)
    one.values.fill(0)
    np.testing.assert_array_equal(two.values, [weights])
    np.testing.assert_array_equal(weights, [5, 6])


def test_rows_in_place_of_a_tensor_are_refused_with_what_to_do():
    rows = IndexedSlices(np.ones((1, 2)), np.array([0]), (4, 2))
    with pytest.raises(
        TypeError, match=r"clip\(x=IndexedSlices.*rows of a gradient, no array: use psworker.clip_by_value"
    ):
        ops.clip(rows, -1, 1)


# Calls of another form.


def test_an_op_of_any_number_of_tensors_has_a_derivative_for_each():
    @op
    def _total(*xs, factor=1):
        return sum(xs) * factor, [lambda g: g * factor] * len(xs)

    a, b = leaf(1.0), leaf(2.0)
    y = _total(a, 5.0, b, b, factor=3)
    assert (y.item(), gradients(y, [a, b])) == (30, [3, 6])
    with pytest.raises(TypeError, match=r"^total\(xs: \[float64 \(1,\), None\]\)"):
        _total(a, None)


def test_a_tensor_may_be_passed_by_keyword():
    @op
    def _ratio(a, b, /, scale=1):
        return scale * a / b, (lambda g: scale * g / b, lambda g: -scale * g * a / b**2)

    a, b = leaf(6.0), leaf(2.0)
    for y in (_ratio(a=a, b=b, scale=5), _ratio(b=b, scale=5, a=a), _ratio(a, scale=5, b=b)):
        assert (y.item(), gradients(y, [a, b])) == (15, [2.5, -7.5])
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        _ratio(a=a)


@pytest.mark.parametrize("number", [np.float64(3), np.int64(3), np.uint8(3), 3, 3.0])
def test_a_number_of_numpys_promotes_as_little_as_pythons(number):
    @op
    def power(x, other, /, exponent=1):
        return x * other**exponent, (lambda g: g * other**exponent, lambda g: g * x)

    x = Tensor(np.float32([2]), requires_grad=True)
    for y in (power(x, number), power(number, x), power(x, 3.0, exponent=number / number)):
        assert (y.dtype, y.item()) == (np.float32, 6)
        assert gradients(y, x)[0].dtype == np.float32


def test_a_matrix_of_numpys_is_an_array_like_any_other():
    x = leaf([1.0, 2.0], [3.0, 4.0])

    @op
    def product(a, b, /):
        return a * b, (lambda g: g * b, lambda g: g * a)

    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1.0, 2], [3, 4]])
    np.testing.assert_array_equal(gradients(product(x, matrix), x)[0], [[1, 2], [3, 4]])


def test_a_tensor_may_be_left_out():
    @op
    def shifted(x, by=None, /, scale=1):
        return x * scale + (0 if by is None else by), (lambda g: g * scale, lambda g: g)

    x, by = leaf(2.0), leaf(3.0)
    assert gradients(shifted(x, None, 5), x) == [5]
    assert gradients(shifted(x), x) == [1]
    assert gradients(shifted(x, by, scale=5), [x, by]) == [5, 1]


# Wrong calls.


def test_what_is_not_a_tensor_is_refused():
    x = leaf(1.0)
    with pytest.raises(TypeError, match="xs must be Tensors, but one of them is ndarray"):
        gradients(x, [np.ones(1)])
    with pytest.raises(TypeError, match="ys must be Tensors, but one of them is float"):
        gradients([1.0], x)


def test_grad_ys_that_do_not_fit_are_refused():
    x = leaf(1.0, 2.0)
    with pytest.raises(ValueError, match=r"grad_ys has shape \(3,\), and its y has shape \(2,\)"):
        gradients(x, x, np.ones(3))
    with pytest.raises(ValueError, match="2 grad_ys for 1 ys"):
        gradients([x], x, [None, None])


def test_a_vjp_of_the_wrong_shape_is_named():
    @op
    def broken(x, /):
        return x.sum(), (lambda g: g,)

    x = leaf(1.0, 2.0)
    with pytest.raises(ValueError, match=r"broken.* gave a gradient of shape \(\) for an input of shape \(2,\)"):
        gradients(broken(x), x)
