"""The tensor: what it holds, shows and refuses."""

import numpy as np
import pytest

from psworker.autodiff import Tensor, gradients


def leaf(*values):
    return Tensor(np.array(values, np.float64), requires_grad=True)


def test_a_tensor_compared_with_an_array_is_an_error_and_not_false():
    x = leaf(1.0)
    for other in (np.ones(1), np.float64(1), 1.0, 1):
        with pytest.raises(TypeError, match=r"compare its \.value, or use ops\.equal"):
            bool(x == other)
        with pytest.raises(TypeError, match=r"compare its \.value"):
            bool(other == x)
    assert x == x
    assert x != leaf(1.0)
    assert x is not None
    assert x in [leaf(1.0), x]


def test_only_floating_point_can_require_a_gradient():
    with pytest.raises(TypeError, match="int64"):
        Tensor([1, 2], requires_grad=True)
    assert not (Tensor([1, 2]) * 2).requires_grad


def test_a_tensor_shares_the_array_it_is_given_and_reads_like_one():
    array = np.array([[1.5, 2.5]])
    x = Tensor(array)
    assert x.value is array
    assert (x.shape, x.dtype, x.ndim, len(x)) == ((1, 2), np.float64, 2, 1)
    assert [row.shape for row in x] == [(2,)]
    assert float(x[0, 1]) == x[0, 1].item() == 2.5
    assert f"{x[0, 0]:.2f}" == "1.50"
    assert bool(Tensor(1.0))
    np.testing.assert_array_equal(np.asarray(x), array)


def test_a_tensor_shows_its_array_and_whether_it_requires_a_gradient():
    assert repr(Tensor(1.5)) == f"{Tensor(1.5)}" == "Tensor(array(1.5))"
    assert repr(leaf(1.0)) == "Tensor(array([1.]), requires_grad=True)"


def test_a_subclass_is_a_leaf_like_any_other_and_its_name_is_in_errors():
    class Variable(Tensor):
        __slots__ = ("name",)

        def __init__(self, value, name):
            super().__init__(value, requires_grad=True)
            self.name = name

    w = Variable(np.ones((2, 3)), name="hidden/W")
    y = w * 2
    assert type(y) is Tensor
    np.testing.assert_array_equal(gradients(y, w)[0], np.full((2, 3), 2))
    with pytest.raises(ValueError, match=r"matmul\(a: float64 \(2, 3\) 'hidden/W', b: float64 \(2,\)\)"):
        w @ np.ones(2)
