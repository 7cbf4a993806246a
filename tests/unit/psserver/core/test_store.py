"""The store: checks change nothing, values are copied in and out, tasks do the array work."""

from collections import defaultdict

import numpy as np
import pytest

from psserver.core.array_tasks import StepResult, run
from psserver.core.variables.element_checks import check_finite, check_tensor, inspect
from psserver.core.variables.store import Store
from pswire.errors import InvalidMessage, NotFinite, ShapeMismatch, TooLarge
from pswire.messages import Assign, Assignment, Declaration, Gradient, Push, Sender
from pswire.optimizers import Adagrad, Adam, GradientDescent, Momentum
from pswire.specs.initializers import RowConstant
from pswire.tensors.values import DTYPES, IndexedSlices, TensorSpec
from tests.shard_state import state_of


def declared(name, value, optimizer=None):
    return Declaration(TensorSpec.of(name, value), value, optimizer)


def store_with(*declarations, memory_limit=None):
    store = Store(memory_limit)
    store.check_declarations(declarations)
    done(store.declare, declarations, defaultdict(lambda: 1.0))
    return store


def done(change, *arguments, **options):
    """What a method of the store returns, when the tasks that it gave out have been run."""
    result = StepResult()
    returned = change(*arguments, result, **options)
    run(result.tasks)
    return returned


def assign(store, assignments, add=False, magnitudes=None):
    message = Assign(Sender("a", 1), 1, tuple(assignments), add)
    return done(store.assign, message, magnitudes or {one.name: 1.0 for one in assignments})


def update(store, *pushes, scale=1.0):
    """One update, the mean of some pushes, each a list of gradients."""
    done(store.update, [Push(Sender("a", 1), 1, tuple(push)) for push in pushes], 0, scale, {})


# --- registration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_initial_value_is_copied_whatever_its_layout(dtype):
    for given in (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2).T, np.arange(12).reshape(2, 6)[:, ::2]):
        given = given.astype(dtype, order="K")
        wanted = given.copy()
        store = store_with(declared("v", given))
        given[...] = 1
        np.testing.assert_array_equal(store["v"].value, wanted)
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
    store = store_with(first, table, memory_limit=20_000)
    store.check_held_pushes(3, [first, second, table])
    for limit in (240, 239):
        store = Store(limit)
        done(store.declare, [first], defaultdict(lambda: 1.0))
        before = state_of(store)
        if limit == 240:
            store.check_held_pushes(3, [second, table])
        else:
            with pytest.raises(TooLarge, match=r"holds 3 pushes .* needs 240 bytes .*'w'.* 239: raise --memory-limit"):
                store.check_held_pushes(3, [second, table])
        assert state_of(store) == before
    Store(None).check_held_pushes(10**9, [first])


# --- updates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("optimizer", [GradientDescent(0.5), Momentum(0.5), Adagrad(0.5), Adam(0.5)], ids=str)
def test_rows_that_come_twice_are_added_up_before_they_are_applied(optimizer, dtype):
    twice = IndexedSlices(np.array([[1, 2], [5, 5], [3, -1]], dtype), np.array([3, 1, 3]), (4, 2))
    once = IndexedSlices(np.array([[5, 5], [4, 1]], dtype), np.array([1, 3]), (4, 2))
    stores = [store_with(declared("v", np.ones((4, 2), dtype), optimizer)) for _ in range(2)]
    for store, rows in zip(stores, (twice, once), strict=True):
        store.check_gradients([Gradient("v", 0, rows)])
        inspect(store.variables, Push(Sender("a", 1), 1, (Gradient("v", 0, rows),)))
        update(store, [Gradient("v", 0, rows)])
        assert (store["v"].version, store["v"].updates) == (1, 1)
        np.testing.assert_array_equal(store["v"].value[[0, 2]], 1)
        assert (store["v"].value[[1, 3]] != 1).all()
    assert state_of(stores[0]) == state_of(stores[1])


def test_rows_are_checked_by_their_array_and_their_elements_apart():
    store = store_with(declared("v", np.zeros((4, 2)), GradientDescent(1.0)))
    hollow = np.broadcast_to(np.float64(0), (1 << 40, 2))
    store.check_gradients([Gradient("v", 0, IndexedSlices(hollow, np.broadcast_to(0, 1 << 40), (4, 2), False))])
    for shape, dtype in (((5, 2), "f8"), ((4, 3), "f8"), ((4,), "f8"), ((4, 2), "f4")):
        rows = IndexedSlices(np.zeros((1, *shape[1:]), dtype), np.array([0]), shape)
        with pytest.raises(ShapeMismatch, match=r"gradient for 'v' is .*, the variable is float64\[4, 2\]"):
            store.check_gradients([Gradient("v", 0, rows)])
    for index in (-1, 4):
        with pytest.raises(InvalidMessage, match=rf"gradient for 'v'.* must be in 0 \.\.\. 3, but they span {index} "):
            inspect(
                store.variables,
                Push(
                    Sender("a", 1),
                    1,
                    (Gradient("v", 0, IndexedSlices(np.zeros((1, 2)), np.array([index]), (4, 2), False)),),
                ),
            )
    with pytest.raises(NotFinite, match="gradient for 'v' has 1 of 2 elements"):
        inspect(
            store.variables,
            Push(Sender("a", 1), 1, (Gradient("v", 0, IndexedSlices(np.array([[0, np.nan]]), np.array([0]), (4, 2))),)),
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_assign_sets_and_adds_in_every_dtype(dtype):
    store = store_with(declared("v", np.array([1, 0]).astype(dtype)))
    assert assign(store, [Assignment("v", np.array([0, 1]).astype(dtype))], add=True, magnitudes={}) == (1,)
    assert store["v"].value.tolist() == [1, 1]
    assert assign(store, [Assignment("v", np.array([0, 1]).astype(dtype))], add=False, magnitudes={"v": 1.0}) == (2,)
    assert store["v"].value.tolist() == [0, 1]


def test_an_addition_wraps_integers_around_and_is_refused_whole_if_it_overflows():
    store = store_with(declared("v", np.array([200], np.uint8)), declared("w", np.array([6e4], np.float16)))
    overflowing = [Assignment("v", np.array([100], np.uint8)), Assignment("w", np.array([6e4], np.float16))]
    assign(store, overflowing[:1], add=True, magnitudes={"v": 0.0})
    assert store["v"].value.tolist() == [44]
    before = state_of(store)
    with pytest.raises(NotFinite, match=r"what is added for 'w' has 1 of 1 elements .*: nothing was changed"):
        assign(store, overflowing, add=True, magnitudes={"v": 0.0, "w": 6e4})
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
    check_finite("v", square[:, :2], "gradient")
    check_finite("v", np.empty((0, 3)), "gradient")
    check_finite("v", np.array(1.5), "gradient")
    check_finite("v", np.array([2**62], np.int64), "assigned value")


def test_a_tensor_fits_in_shape_and_dtype_whatever_its_byte_order():
    spec = TensorSpec("v", (2, 3), "float32")
    for fine in (np.zeros((2, 3), "<f4"), np.zeros((2, 3), ">f4"), np.broadcast_to(np.float32(0), (2, 3))):
        check_tensor(spec, fine, "gradient")
    for bad in (np.zeros((3, 2), "f4"), np.zeros(6, "f4"), np.zeros((2, 3)), np.zeros((2, 3), "i4")):
        with pytest.raises(ShapeMismatch, match=r"gradient for 'v' is .*, the variable is float32\[2, 3\]"):
            check_tensor(spec, bad, "gradient")
