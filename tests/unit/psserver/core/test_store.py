"""The store: checks change nothing, values are copied in and out, tasks do the array work."""

from collections import defaultdict

import numpy as np
import pytest

from psserver.core.array_tasks import StepResult, run
from psserver.core.variables.element_checks import check_finite, check_tensor, inspect
from psserver.core.variables.store import Store
from pswire.errors import InvalidMessage, NotFinite, ShapeMismatch, TooLarge
from pswire.messages import Assign, Assignment, Declaration, Gradient, Push
from pswire.optimizers import Adagrad, Adam, GradientDescent, Momentum
from pswire.specs.initializers import RowConstant
from pswire.tensors.values import DTYPES, IndexedSlices, TensorSpec
from tests.shard_driver import A, declared
from tests.shard_state import state_of


def store_with(*declarations, memory_limit=None):
    store = Store(memory_limit)
    store.check_declarations(declarations)
    done(store.declare, declarations, defaultdict(lambda: 1.0))
    return store


def done(change, *arguments, **options):
    """Return the result of a method of the store when the tasks that it gave out have been run."""
    result = StepResult()
    returned = change(*arguments, result, **options)
    run(result.tasks)
    return returned


def assign(store, add, magnitude=1.0, **arrays):
    assignments = tuple(Assignment(name, array) for name, array in arrays.items())
    return done(store.assign, Assign(A, 1, assignments, add), dict.fromkeys(arrays, magnitude))


def push(gradient):
    return Push(A, 1, (Gradient("v", 0, gradient),))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_initial_value_is_copied_whatever_its_layout(dtype):
    for given in (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2).T, np.arange(12).reshape(2, 6)[:, ::2]):
        given = given.astype(dtype, order="K")
        expected = given.copy()
        store = store_with(declared("v", given))
        given[...] = 1
        np.testing.assert_array_equal(store["v"].value, expected)
        assert store["v"].value.flags.c_contiguous
        assert store["v"].value.dtype == DTYPES[dtype]


def test_values_and_slots_are_limited_before_memory_is_allocated():
    one = declared("one", np.zeros(100, np.float32), Adam())
    store = store_with(one, memory_limit=2000)
    assert store.nbytes == 1200
    before = state_of(store)
    with pytest.raises(TooLarge, match=r"two.*need 808 bytes more; this shard holds 1,200 and may hold 2,000"):
        store.check_declarations([declared("two", np.zeros(101, np.float32), Momentum(learning_rate=1))])
    store.check_declarations([declared("two", np.zeros(100, np.float32), Momentum(learning_rate=1))])
    store.check_declarations([one])
    assert state_of(store) == before


def test_pushes_held_together_must_fit_with_their_answers():
    """Three pushes of 40 bytes, and as many answers: 240. Of tables only rows travel."""
    table = Declaration(TensorSpec("E", (1000, 2)), None, None, RowConstant(0.0))
    first, second = declared("v", np.zeros(6, np.float32)), declared("w", np.zeros(4, np.float32))
    store_with(first, table, memory_limit=20_000).check_held_pushes(3, [first, second, table])
    for limit in (240, 239):
        store = store_with(first, memory_limit=limit)
        before = state_of(store)
        if limit == 240:
            store.check_held_pushes(3, [second, table])
        else:
            with pytest.raises(TooLarge, match=r"holds 3 pushes .* needs 240 bytes .*'w'.* 239: raise --memory-limit"):
                store.check_held_pushes(3, [second, table])
        assert state_of(store) == before
    Store(None).check_held_pushes(10**9, [first])


# --- changes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [(GradientDescent(0.5), "float16"), (Momentum(0.5), "float64"), (Adagrad(0.5), "float32"), (Adam(0.5), "float16")],
    ids=str,
)
def test_rows_that_come_twice_are_added_up_before_they_are_applied(optimizer, dtype):
    twice = IndexedSlices(np.array([[1, 2], [5, 5], [3, -1]], dtype), np.array([3, 1, 3]), (4, 2))
    once = IndexedSlices(np.array([[5, 5], [4, 1]], dtype), np.array([1, 3]), (4, 2))
    stores = [store_with(declared("v", np.ones((4, 2), dtype), optimizer)) for _ in range(2)]
    for store, rows in zip(stores, (twice, once), strict=True):
        store.check_gradients(push(rows).gradients)
        inspect(store.variables, push(rows))
        done(store.update, [push(rows)], 0, 1.0, {})
        assert (store["v"].version, store["v"].updates) == (1, 1)
        np.testing.assert_array_equal(store["v"].value[[0, 2]], 1)
        assert (store["v"].value[[1, 3]] != 1).all()
    assert state_of(stores[0]) == state_of(stores[1])


def test_rows_are_checked_by_their_array_and_their_elements_apart():
    store = store_with(declared("v", np.zeros((4, 2)), GradientDescent(1.0)))
    hollow = np.broadcast_to(np.float64(0), (1 << 40, 2))
    store.check_gradients(push(IndexedSlices(hollow, np.broadcast_to(0, 1 << 40), (4, 2), False)).gradients)
    for shape, dtype in (((5, 2), "f8"), ((4, 3), "f8"), ((4,), "f8"), ((4, 2), "f4")):
        rows = IndexedSlices(np.zeros((1, *shape[1:]), dtype), np.array([0]), shape)
        with pytest.raises(ShapeMismatch, match=r"gradient for 'v' is .*, the variable is float64\[4, 2\]"):
            store.check_gradients(push(rows).gradients)
    for index, element, error, match in (
        (-1, 0, InvalidMessage, r"gradient for 'v'.* must be in 0 \.\.\. 3, but they span -1 "),
        (4, 0, InvalidMessage, r"gradient for 'v'.* must be in 0 \.\.\. 3, but they span 4 "),
        (0, np.nan, NotFinite, "gradient for 'v' has 1 of 2 elements"),
    ):
        rows = IndexedSlices(np.array([[0, element]]), np.array([index]), (4, 2), False)
        with pytest.raises(error, match=match):
            inspect(store.variables, push(rows))


@pytest.mark.parametrize("dtype", DTYPES)
def test_assign_sets_and_adds_in_every_dtype(dtype):
    store, last = store_with(declared("v", np.array([1, 0]).astype(dtype))), np.array([0, 1]).astype(dtype)
    assert assign(store, add=True, v=last) == (1,)
    assert store["v"].value.tolist() == [1, 1]
    assert assign(store, add=False, v=last) == (2,)
    assert store["v"].value.tolist() == [0, 1]


def test_an_addition_wraps_integers_around_and_is_refused_whole_if_it_overflows():
    store = store_with(declared("v", np.array([200], np.uint8)), declared("w", np.array([6e4], np.float16)))
    assign(store, add=True, v=np.array([100], np.uint8))
    assert store["v"].value.tolist() == [44]
    before = state_of(store)
    with pytest.raises(NotFinite, match=r"what is added for 'w' has 1 of 1 elements .*: nothing was changed"):
        assign(store, True, 6e4, v=np.array([100], np.uint8), w=np.array([6e4], np.float16))
    assert state_of(store) == before


# --- checks of tensors ------------------------------------------------------------------------------------------------


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
