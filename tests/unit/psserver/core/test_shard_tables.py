"""Tables in a shard: initialized from row numbers, read by rows and slots; refusals change nothing."""

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire.errors import AlreadyRegistered, InvalidMessage, NoOptimizer, ParamServerError, TooLarge, UnknownVariable
from pswire.messages import Choice, Declaration, Gradient, Join, Pull, Push, Register, Sender, Status
from pswire.optimizers import Adagrad, Adam, GradientDescent
from pswire.specs.initializers import RowConstant, RowNormal, RowUniform, rows_of
from pswire.tensors.values import IndexedSlices, Part, TensorSpec
from tests.shard_state import run_step, state_of

ME = Sender("w0", 1)
SPEC = TensorSpec("E", (5, 2))
NORMAL = RowNormal(1.0, seed=7)
UNIFORM = RowUniform(-1, 1, seed=7)


def shard_with(*declarations, memory_limit=None):
    shard = Shard(memory_limit=memory_limit)
    say(shard, Join("w0"))
    say(shard, Register(ME, declarations))
    return shard


def say(shard, message):
    (reply,) = run_step(shard, 0, message, 0.0)
    return reply.answer


def choose(shard, *choices):
    return [value.array for value in say(shard, Pull(ME, (), choices)).values]


def refused(shard, message, error, match):
    """Refuses it, and stays what it was."""
    before = state_of(shard)
    with pytest.raises(error, match=match) as caught:
        run_step(shard, 0, message, 0.0)
    assert type(caught.value) is error
    assert state_of(shard) == before


# --- registration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("initial", [NORMAL, UNIFORM, RowConstant(0.5)], ids=str)
def test_a_table_has_the_rows_of_its_initializer_and_is_not_sent_back(initial, dtype):
    plain = Declaration(TensorSpec("b", (1,)), np.ones(1, np.float32))
    shard = Shard()
    say(shard, Join("w0"))
    registered = say(shard, Register(ME, (Declaration(TensorSpec("E", (5, 2), dtype), initial=initial), plain)))
    assert [value.name for value in registered.values] == ["b"]
    (value,) = say(shard, Pull(ME, ("E",))).values
    assert (value.version, value.array.dtype) == (0, dtype)
    np.testing.assert_array_equal(value.array, rows_of(initial, np.arange(5), (2,), dtype))


@pytest.mark.parametrize("first", [0, 3, 95])
def test_a_part_of_a_table_has_the_rows_of_its_numbers_in_the_whole(first):
    shard = shard_with(Declaration(SPEC, initial=UNIFORM, part=Part(first, 100)))
    (array,) = choose(shard, Choice("E", np.array([4, 0])))
    np.testing.assert_array_equal(array, rows_of(UNIFORM, np.array([first + 4, first]), (2,)))
    assert say(shard, Status()).variables[0].part == Part(first, 100)


def test_later_declarations_of_a_table_must_agree_with_the_first():
    table = Declaration(SPEC, initial=UNIFORM, optimizer=Adagrad(0.5))
    shard = shard_with(table)
    assert say(shard, Register(ME, (table,))).values == ()
    for other, match in (
        (Declaration(SPEC, np.zeros((5, 2), np.float32)), "registered as a table, this worker declares a plain one"),
        (Declaration(SPEC, initial=NORMAL), "registered with RowUniform.*declares RowNormal"),
        (Declaration(SPEC, initial=RowUniform(-1, 1, seed=8)), "seed=7.*seed=8"),
        (
            Declaration(SPEC, initial=UNIFORM, part=Part(0, 10)),
            r"float32\[5, 2\], this worker declares float32\[10, 2\]",
        ),
        (Declaration(SPEC, initial=UNIFORM, optimizer=Adagrad(0.25)), "one optimizer"),
    ):
        refused(shard, Register(ME, (other,)), AlreadyRegistered, match)
    plain = Declaration(TensorSpec("b", (2, 2)), np.ones((2, 2), np.float32))
    shard = shard_with(plain)
    other = Declaration(plain.spec, initial=UNIFORM)
    refused(shard, Register(ME, (other,)), AlreadyRegistered, "with a value of its own, this worker declares RowUn")


def test_an_invalid_table_is_refused():
    shard = shard_with()
    for declaration, match in (
        (Declaration(TensorSpec("E", ()), initial=NORMAL), "must have rows, of floating point"),
        (Declaration(TensorSpec("E", (5,), "int32"), initial=NORMAL), "must have rows, of floating point"),
        (Declaration(SPEC, np.zeros((5, 2), np.float32), initial=NORMAL), "with a value and as a table"),
        (
            Declaration(TensorSpec("E", (5, 2), "float16"), initial=RowUniform(-1e5, 1.0)),
            "E.*which float16 cannot hold",
        ),
        (Declaration(SPEC, initial=RowConstant(1e39)), "E.*values up to 1e.39, which float32 cannot hold"),
        (Declaration(SPEC, initial=NORMAL, part=Part(6, 10)), "does not fit into 10 rows from row 6 on"),
        (Declaration(TensorSpec("E", ()), np.float32(1), part=Part(0, 1)), "does not fit"),
    ):
        refused(shard, Register(ME, (declaration,)), InvalidMessage, match)


def test_a_table_beyond_the_memory_limit_is_refused_with_all_that_came_with_it():
    """A million rows of 64 float32, and as many for Adagrad: it is never made."""
    small = Declaration(TensorSpec("b", (4,)), np.zeros(4, np.float32), GradientDescent(1.0))
    large = Declaration(TensorSpec("E", (1_000_000, 64)), initial=NORMAL, optimizer=Adagrad(0.5))
    shard = shard_with(memory_limit=512_000_000)
    refused(shard, Register(ME, (small, large)), TooLarge, r"b, E|E, b.*512,000,016 bytes more.*--memory-limit")
    assert say(shard, Status()).variables == ()
    shard = shard_with(Declaration(SPEC, initial=NORMAL), memory_limit=79)
    slots = Register(ME, (Declaration(SPEC, optimizer=Adagrad(0.5)),))
    refused(shard, slots, TooLarge, "need 40 bytes more; this shard holds 40 and may hold 79")
    refused(shard, Push(ME, 1, (Gradient("E", 0, np.zeros((5, 2), np.float32)),)), NoOptimizer, "no optimizer")


# --- choices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", ">i4"])
def test_rows_come_in_the_order_asked_for_with_their_repeats(dtype):
    shard = shard_with(Declaration(SPEC, initial=NORMAL))
    for numbers in ([4, 0, 4, 2], [], [3], [0, 1, 2, 3, 4]):
        (array,) = choose(shard, Choice("E", np.array(numbers, dtype)))
        assert (array.shape, array.dtype) == ((len(numbers), 2), np.float32)
        np.testing.assert_array_equal(array, rows_of(NORMAL, np.array(numbers, np.int64), (2,)))


def declared_vector():
    return Declaration(TensorSpec("v", (3,)), np.arange(3, dtype=np.float32))


def test_a_slot_is_read_whole_and_by_rows_at_the_version_of_its_variable():
    shard = shard_with(Declaration(SPEC, initial=RowConstant(1.0), optimizer=Adagrad(1.0, initial_accumulator=0.25)))
    gradient = IndexedSlices(np.array([[1, 2], [3, 4]], np.float32), np.array([4, 1]), (5, 2))
    say(shard, Push(ME, 1, (Gradient("E", 0, gradient),)))
    pulled = say(shard, Pull(ME, (), (Choice("E", slot="accumulator"), Choice("E", np.array([1, 0]), "accumulator"))))
    whole, rows = pulled.values
    assert (whole.version, rows.version) == (1, 1)
    squares = np.full((5, 2), 0.25, np.float32)
    squares[[4, 1]] += gradient.values**2
    np.testing.assert_array_equal(whole.array, squares)
    np.testing.assert_array_equal(rows.array, squares[[1, 0]])


BAD_CHOICES = {
    "a row beyond the last": (Choice("E", np.array([0, 5])), InvalidMessage, r"0 \.\.\. 4, but they span 0 \.\.\. 5"),
    "a negative row": (Choice("E", np.array([-1, 2])), InvalidMessage, r"0 \.\.\. 4, but they span -1 \.\.\. 2"),
    "the largest row": (Choice("E", np.array([2**64 - 1], np.uint64)), InvalidMessage, "but they span 184467"),
    "rows of floats": (Choice("E", np.array([1.0])), InvalidMessage, r"integers of shape \(n,\), not float64\[1\]"),
    "rows of truths": (Choice("E", np.array([True])), InvalidMessage, r"integers of shape \(n,\), not bool\[1\]"),
    "a square of rows": (Choice("E", np.array([[1]])), InvalidMessage, r"integers of shape \(n,\), not int64\[1, 1\]"),
    "one number": (Choice("E", np.array(1)), InvalidMessage, r"integers of shape \(n,\), not int64\[\]"),
    "an unknown slot": (Choice("E", slot="momentum"), InvalidMessage, "no slot 'momentum'; there are: m, v"),
    "a slot of none": (Choice("v", slot="m"), InvalidMessage, "'v' has no slot 'm'; there are: none"),
    "an unknown variable": (Choice("F"), UnknownVariable, "no variable 'F'"),
    "rows of a number": (Choice("s", np.array([0])), InvalidMessage, "'s' is a number: it has no rows"),
    "a row of an empty table": (Choice("empty", np.array([0])), InvalidMessage, r"must be in 0 \.\.\. -1"),
}


@pytest.mark.parametrize("case", BAD_CHOICES.values(), ids=BAD_CHOICES)
def test_an_invalid_choice_is_refused_and_changes_nothing(case):
    choice, error, match = case
    shard = shard_with(
        Declaration(SPEC, initial=NORMAL, optimizer=Adam(0.5)),
        declared_vector(),
        Declaration(TensorSpec("s", ()), np.float32(1)),
        Declaration(TensorSpec("empty", (0, 2)), initial=NORMAL),
    )
    good = Choice("E", np.array([0]))
    for choices in ((choice,), (good, choice), (choice, good)):
        refused(shard, Pull(ME, ("v",), choices), error, match)


def test_the_bytes_of_an_answer_are_known_before_it_is_made():
    shard = shard_with(Declaration(SPEC, initial=NORMAL, optimizer=Adam(0.5)), declared_vector())
    chosen = (Choice("E", np.arange(3)), Choice("E", slot="m"), Choice("E", np.zeros(9, int), "v"))
    assert shard.answer_bytes(Pull(ME, ("v",), chosen)) == 4 * (3 + 3 * 2 + 5 * 2 + 9 * 2)
    new = Declaration(TensorSpec("F", (9,)), initial=NORMAL)
    for table in (Declaration(SPEC, initial=NORMAL), Declaration(SPEC), new):
        assert shard.answer_bytes(Register(ME, (table, declared_vector()))) == 12
    for bad in (Choice("F"), Choice("E", slot="w")):
        with pytest.raises(ParamServerError):
            shard.answer_bytes(Pull(ME, (), (bad,)))
