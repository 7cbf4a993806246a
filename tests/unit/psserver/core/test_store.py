"""Values of variables are copied in, set and added to in every dtype; checks of arrays: finite, shape and dtype."""

import numpy as np
import pytest

from psserver.core.variables.element_checks import check_finite, check_tensor
from pswire.errors import NotFinite, ShapeMismatch
from pswire.messages import Assign, Assignment
from pswire.tensors.values import DTYPES, TensorSpec
from tests.shard_driver import A, ShardDriver, declared


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_initial_value_is_copied_and_set_and_added_to_whatever_its_layout_and_dtype(dtype):
    for given in (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2).T, np.arange(12).reshape(2, 6)[:, ::2]):
        given = given.astype(dtype, order="K")
        expected = given.copy()
        shard = ShardDriver(declared("v", given))
        given[...] = 1
        value = shard.shard._store["v"].value
        np.testing.assert_array_equal(value, expected)
        assert value.flags.c_contiguous
        assert value.dtype == DTYPES[dtype]
        for sequence, add in enumerate((True, False), 1):
            shard.answer(Assign(A, sequence, (Assignment("v", given),), add))
            np.testing.assert_array_equal(value, expected + given if add else given)


def test_an_addition_wraps_integers_around_and_is_refused_whole_if_it_overflows():
    shard = ShardDriver(declared("v", np.array([200], np.uint8)), declared("w", np.array([6e4], np.float16)))
    value, hundred = shard.shard._store["v"].value, Assignment("v", np.array([100], np.uint8))
    shard.answer(Assign(A, 1, (hundred,), add=True))
    assert value.tolist() == [44]
    answer = shard.answer(Assign(A, 2, (hundred, Assignment("w", np.array([6e4], np.float16))), add=True))
    with pytest.raises(NotFinite, match=r"what is added for 'w' has 1 of 1 elements .*: nothing was changed"):
        raise answer
    assert value.tolist() == [44]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_nan_and_infinity_is_found_and_nothing_else(dtype):
    largest = np.finfo(dtype).max
    for size in (1, 5, 100_000):
        for fine in (0, 1, largest, -largest, np.finfo(dtype).smallest_subnormal):
            check_finite("v", np.full(size, fine, dtype), "gradient")
        for bad in (np.nan, np.inf, -np.inf):
            array = np.full(size, largest, dtype)
            array[-1] = bad
            with pytest.raises(NotFinite, match=f"gradient for 'v' has 1 of {size:,} elements"):
                check_finite("v", array, "gradient")


def test_arrays_of_every_layout_are_checked_for_being_finite():
    square = np.zeros((4, 4))
    square[1, 2] = np.nan
    for array in (square.T, square[::-1], square[:, 2], np.broadcast_to(square[1, 2], (3, 3)), square[1, 2, None]):
        with pytest.raises(NotFinite):
            check_finite("v", array, "gradient")
    for array in (square[:, :2], np.empty((0, 3)), np.array(1.5), np.array([2**62], np.int64)):
        check_finite("v", array, "gradient")


def test_a_tensor_fits_in_shape_and_dtype_whatever_its_byte_order():
    spec = TensorSpec("v", (2, 3), "float32")
    for fine in (np.zeros((2, 3), "<f4"), np.zeros((2, 3), ">f4"), np.broadcast_to(np.float32(0), (2, 3))):
        check_tensor(spec, fine, "gradient")
    for bad in (np.zeros((3, 2), "f4"), np.zeros(6, "f4"), np.zeros((2, 3)), np.zeros((2, 3), "i4")):
        with pytest.raises(ShapeMismatch, match=r"gradient for 'v' is .*, the variable is float32\[2, 3\]"):
            check_tensor(spec, bad, "gradient")
