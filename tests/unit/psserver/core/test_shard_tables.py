"""Tables in a shard: initialized from row numbers, read by rows and slots; refusals change nothing."""

import numpy as np
import pytest

from pswire.errors import AlreadyRegistered, InvalidMessage, NoOptimizer, ParamServerError, TooLarge, UnknownVariable
from pswire.messages import Choice, Declaration, Gradient, Pull, Push, Register, Status
from pswire.optimizers import Adagrad, Adam, GradientDescent
from pswire.specs.initializers import RowConstant, RowNormal, RowUniform, rows_of
from pswire.tensors.values import IndexedSlices, Part, TensorSpec
from tests.shard_driver import A, ShardDriver, declared

NORMAL, UNIFORM = RowNormal(1.0, seed=7), RowUniform(-1, 1, seed=7)
VECTOR = declared("v", np.arange(3, dtype=np.float32))
ZEROS = np.zeros((5, 2), np.float32)


def table(initial=NORMAL, optimizer=None, name="E", shape=(5, 2), dtype="float32", part=None):
    return Declaration(TensorSpec(name, shape, dtype), None, optimizer, initial, part)


def choose(shard, *choices):
    return [value.array for value in shard.answer(Pull(A, (), choices)).values]


# --- registration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("initial", [NORMAL, UNIFORM, RowConstant(0.5)], ids=str)
def test_a_table_has_the_rows_of_its_initializer_and_is_not_sent_back(initial, dtype):
    shard = ShardDriver()
    registered = shard.answer(Register(A, (table(initial, dtype=dtype), VECTOR)))
    assert [value.name for value in registered.values] == ["v"]
    (value,) = shard.answer(Pull(A, ("E",))).values
    assert (value.version, value.array.dtype) == (0, dtype)
    np.testing.assert_array_equal(value.array, rows_of(initial, np.arange(5), (2,), dtype))


@pytest.mark.parametrize("first", [0, 3, 95])
def test_a_part_of_a_table_has_the_rows_of_its_numbers_in_the_whole(first):
    shard = ShardDriver(table(UNIFORM, part=Part(first, 100)))
    (array,) = choose(shard, Choice("E", np.array([4, 0])))
    np.testing.assert_array_equal(array, rows_of(UNIFORM, np.array([first + 4, first]), (2,)))
    assert shard.answer(Status()).variables[0].part == Part(first, 100)


def test_later_declarations_of_a_table_must_agree_with_the_first():
    first = table(UNIFORM, Adagrad(0.5))
    shard = ShardDriver(first)
    assert shard.answer(Register(A, (first,))).values == ()
    plain, other = declared("b", ZEROS), table(UNIFORM, name="b")
    for driver, declaration, match in (
        (shard, declared("E", ZEROS), "registered as a table, this worker declares a plain one"),
        (shard, table(NORMAL), "registered with RowUniform.*declares RowNormal"),
        (shard, table(RowUniform(-1, 1, seed=8)), "seed=7.*seed=8"),
        (shard, table(UNIFORM, part=Part(0, 10)), r"float32\[5, 2\], this worker declares float32\[10, 2\]"),
        (shard, table(UNIFORM, Adagrad(0.25)), "one optimizer"),
        (ShardDriver(plain), other, "with a value of its own, this worker declares RowUn"),
    ):
        driver.refuse(Register(A, (declaration,)), AlreadyRegistered, match)


def test_an_invalid_table_is_refused():
    for declaration, match in (
        (table(shape=()), "must have rows, of floating point"),
        (table(shape=(5,), dtype="int32"), "must have rows, of floating point"),
        (Declaration(TensorSpec("E", (5, 2)), ZEROS, initial=NORMAL), "with a value and as a table"),
        (table(RowUniform(-1e5, 1.0), dtype="float16"), "E.*which float16 cannot hold"),
        (table(RowConstant(1e39)), "E.*values up to 1e.39, which float32 cannot hold"),
        (table(part=Part(6, 10)), "does not fit into 10 rows from row 6 on"),
        (Declaration(TensorSpec("E", ()), np.float32(1), part=Part(0, 1)), "does not fit"),
    ):
        ShardDriver().refuse(Register(A, (declaration,)), InvalidMessage, match)


def test_a_table_beyond_the_memory_limit_is_refused_with_all_that_came_with_it():
    """A million rows of 64 float32, and as many for Adagrad: it is never made."""
    small = declared("b", np.zeros(4, np.float32), GradientDescent(1.0))
    shard = ShardDriver(memory_limit=512_000_000)
    both = Register(A, (small, table(optimizer=Adagrad(0.5), shape=(1_000_000, 64))))
    shard.refuse(both, TooLarge, r"b, E|E, b.*512,000,016 bytes more.*--memory-limit")
    assert shard.answer(Status()).variables == ()
    shard = ShardDriver(table(), memory_limit=79)
    slots = Register(A, (table(None, Adagrad(0.5)),))
    shard.refuse(slots, TooLarge, "need 40 bytes more; this shard holds 40 and may hold 79")
    shard.refuse(Push(A, 1, (Gradient("E", 0, ZEROS),)), NoOptimizer, "no optimizer")


# --- choices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", ">i4"])
def test_rows_come_in_the_order_asked_for_with_their_repeats(dtype):
    shard = ShardDriver(table())
    for numbers in ([4, 0, 4, 2], [], [3], [0, 1, 2, 3, 4]):
        (array,) = choose(shard, Choice("E", np.array(numbers, dtype)))
        assert (array.shape, array.dtype) == ((len(numbers), 2), np.float32)
        np.testing.assert_array_equal(array, rows_of(NORMAL, np.array(numbers, np.int64), (2,)))


def test_a_slot_is_read_whole_and_by_rows_at_the_version_of_its_variable():
    shard = ShardDriver(table(RowConstant(1.0), Adagrad(1.0, initial_accumulator=0.25)))
    gradient = IndexedSlices(np.array([[1, 2], [3, 4]], np.float32), np.array([4, 1]), (5, 2))
    shard.push(E=gradient)
    pull = Pull(A, (), (Choice("E", slot="accumulator"), Choice("E", np.array([1, 0]), "accumulator")))
    whole, rows = shard.answer(pull).values
    assert (whole.version, rows.version) == (1, 1)
    squares = np.full((5, 2), 0.25, np.float32)
    squares[[4, 1]] += gradient.values**2
    np.testing.assert_array_equal(whole.array, squares)
    np.testing.assert_array_equal(rows.array, squares[[1, 0]])


BAD_CHOICES = {
    "a row beyond the last": (Choice("E", np.array([0, 5])), r"0 \.\.\. 4, but they span 0 \.\.\. 5"),
    "a negative row": (Choice("E", np.array([-1, 2])), r"0 \.\.\. 4, but they span -1 \.\.\. 2"),
    "the largest row": (Choice("E", np.array([2**64 - 1], np.uint64)), "but they span 184467"),
    "rows of floats": (Choice("E", np.array([1.0])), r"integers of shape \(n,\), not float64\[1\]"),
    "rows of truths": (Choice("E", np.array([True])), r"integers of shape \(n,\), not bool\[1\]"),
    "a square of rows": (Choice("E", np.array([[1]])), r"integers of shape \(n,\), not int64\[1, 1\]"),
    "one number": (Choice("E", np.array(1)), r"integers of shape \(n,\), not int64\[\]"),
    "an unknown slot": (Choice("E", slot="momentum"), "no slot 'momentum'; there are: m, v"),
    "a slot of none": (Choice("v", slot="m"), "'v' has no slot 'm'; there are: none"),
    "an unknown variable": (Choice("F"), "no variable 'F'"),
    "rows of a number": (Choice("s", np.array([0])), "'s' is a scalar: it has no rows"),
    "a row of an empty table": (Choice("empty", np.array([0])), r"must be in 0 \.\.\. -1"),
}


@pytest.mark.parametrize("case", BAD_CHOICES.values(), ids=BAD_CHOICES)
def test_an_invalid_choice_is_refused_and_changes_nothing(case):
    choice, match = case
    empty = table(name="empty", shape=(0, 2))
    shard = ShardDriver(table(optimizer=Adam(0.5)), VECTOR, declared("s", np.float32(1)), empty)
    good = Choice("E", np.array([0]))
    for choices in ((choice,), (good, choice), (choice, good)):
        shard.refuse(Pull(A, ("v",), choices), UnknownVariable if choice.name == "F" else InvalidMessage, match)


def test_the_bytes_of_an_answer_are_known_before_it_is_made():
    count = ShardDriver(table(optimizer=Adam(0.5)), VECTOR).shard.answer_bytes
    chosen = (Choice("E", np.arange(3)), Choice("E", slot="m"), Choice("E", np.zeros(9, int), "v"))
    assert count(Pull(A, ("v",), chosen)) == 4 * (3 + 3 * 2 + 5 * 2 + 9 * 2)
    for one in (table(), table(None), table(name="F", shape=(9,))):
        assert count(Register(A, (one, VECTOR))) == 12
    for bad in (Choice("F"), Choice("E", slot="w")):
        with pytest.raises(ParamServerError):
            count(Pull(A, (), (bad,)))
