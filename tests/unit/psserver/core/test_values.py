"""Values that come in and go out: dtypes and layouts, encodings, memory of the caller; checks of arrays.

Rows, slots and tables are in `tests/scenarios/tables.txt`.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from psserver.core.variables.element_checks import check_finite
from pswire.errors import InvalidMessage, NotFinite, ParamServerError, ShapeMismatch
from pswire.messages import (
    Assign,
    Assignment,
    Choice,
    Declaration,
    Gradient,
    Join,
    Outcome,
    Pull,
    Push,
    Register,
    most_answer_sizes,
    tensor_bytes,
)
from pswire.optimizers import Adagrad, GradientDescent
from pswire.specs.consistency import DelayCompensation, DropStalePushes, Synchronous
from pswire.specs.encodings import ENCODINGS
from pswire.specs.initializers import RowConstant
from pswire.tensors.compression import Packed, to_16_bits
from pswire.tensors.values import DTYPES, IndexedSlices, TensorSpec
from tests.support.shards import A, B, ShardDriver, declared, state_of

STARTS = {
    "W": np.array([[1.0, -2.0], [3.25, 1e-3]], np.float32),
    "d": np.array([0.1, 0.2]),
    "s": np.array(0.3, np.float32),
}
ONES = np.ones((2, 2), np.float32)


class Memory:
    """Memory of the caller's; `taken` has what the shard took of it."""

    def __init__(self, *without):
        self.without, self.taken = without, []

    def take(self, spec):
        if spec.name in self.without:
            return None
        self.taken.append((spec.name, np.full(spec.shape, 77, spec.dtype)))
        return self.taken[-1][1]


def shard_with(optimizer=None, **options):
    optimizer = optimizer or GradientDescent(1.0)
    return ShardDriver(*(declared(name, value, optimizer) for name, value in STARTS.items()), **options)


def push(sender, sequence, gradient=ONES, name="W", pull=(), **options):
    return Push(
        sender=sender, sequence=sequence, gradients=(Gradient(name, 0, gradient),), loss=None, pull=pull, **options
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("memory", [None, Memory(), Memory("W", "s")], ids=["none", "for all", "for some"])
def test_values_of_float32_are_encoded_and_others_are_not(encoding, memory):
    shard = shard_with(Adagrad(0.5, initial_accumulator=0.1))
    choices = (Choice("W", np.array([1, 1, 0])), Choice("W", slot="accumulator"), Choice("d", np.array([1])))
    values = shard.answer(
        Pull(sender=A, names=("d", "W", "s"), choices=choices, encoding=encoding), allocator=memory
    ).values
    expected = [*(STARTS[name] for name in ("d", "W", "s")), STARTS["W"][[1, 1, 0]], np.full((2, 2), 0.1, "f4")]
    for value, array in zip(values, [*expected, STARTS["d"][[1]]], strict=True):
        if array.dtype == np.float64:
            np.testing.assert_array_equal(value.array, array)
        else:
            assert isinstance(value.array, Packed)
            assert state_of(value.array) == state_of(to_16_bits(array, encoding))
            assert not value.array.parts[0].flags.writeable
    assert isinstance(shard.answer(push(A, 1, pull=("W",), encoding=encoding)).values[0].array, Packed)


# --- memory of the caller ---------------------------------------------------------------------------------------------


def test_values_are_written_into_memory_of_the_caller_in_order_and_are_read_only():
    memory, choices = Memory("s"), (Choice("W", np.array([1])), Choice("d"))
    pull = Pull(sender=A, names=("d", "s", "W"), choices=choices, known_versions=(-1, -1, -1))
    d, s, *others = shard_with().answer(pull, allocator=memory).values
    assert [name for name, _ in memory.taken] == ["d", "W", "W", "d"]
    arrays = [array for _, array in memory.taken]
    for value, array in zip([d, *others], arrays, strict=True):
        assert np.shares_memory(value.array, array)
        assert not value.array.flags.writeable
    np.testing.assert_array_equal(arrays[1], STARTS["W"])
    np.testing.assert_array_equal(arrays[2], STARTS["W"][[1]])
    np.testing.assert_array_equal(s.array, STARTS["s"])


def test_a_held_push_is_answered_in_memory_of_its_own_call():
    shard, memories = shard_with(consistency=Synchronous(2)), [Memory(), Memory(), Memory()]
    message = push(A, 1, pull=("W",))
    assert shard.step(message, 5, allocator=memories[0]) == {}
    assert set(shard.step(message, 6, allocator=memories[1])) == {5}, "the retry takes its place"
    answers = shard.step(push(B, 1, STARTS["W"], pull=("W",)), 7, allocator=memories[2])
    assert not memories[0].taken
    for ticket, memory in ((6, memories[1]), (7, memories[2])):
        ((_, array),) = memory.taken
        assert np.shares_memory(answers[ticket].values[0].array, array)
        np.testing.assert_array_equal(array, STARTS["W"] - (1 + STARTS["W"]) / 2)
    assert shard.answer(message, allocator=memories[0]).outcome is Outcome.REPEATED
    assert len(memories[0].taken) == 1


def test_delay_is_compensated_by_the_weights_as_they_were_encoded_which_are_not_in_memory_of_the_caller():
    shard, memory = shard_with(staleness=DelayCompensation(0.5)), Memory()
    then = shard.answer(Pull(sender=A, names=("W",), encoding="bfloat16"), allocator=memory).values[0].array.unpacked()
    assert not memory.taken
    shard.answer(push(B, 1))
    now, (value,) = STARTS["W"] - 1, shard.answer(push(A, 1, 2 * ONES, pull=("W",))).values
    np.testing.assert_allclose(value.array, now - (2 + 0.5 * 4 * (now - then)), rtol=1e-6)


def test_sizes_of_an_answer_are_counted_as_it_will_travel_before_it_is_made():
    shard = shard_with(Adagrad(0.5))
    count, spec_of = shard.shard.answer_bytes, {name: TensorSpec.of(name, one) for name, one in STARTS.items()}.get
    choices = (Choice("W", np.array([1, 1])), Choice("W", np.array([1]), "accumulator"), Choice("d"), Choice("s"))
    everything = Pull(sender=A, names=("W", "d"), choices=choices)
    assert most_answer_sizes(everything, spec_of) == [16, 16, 16, 16, 16, 4], "a slot may be float64"
    assert count(everything) == 76 == tensor_bytes(shard.answer(everything))
    encoded = replace(everything, encoding="float16")
    assert count(encoded) == 54 == tensor_bytes(shard.answer(encoded))
    known = Pull(sender=A, names=("W", "d"), known_versions=(0, 3))
    assert count(known) == 32, "it may be modified until the step is taken"
    assert count(known, at_once=True) == 16 == tensor_bytes(shard.answer(known))
    follower = ShardDriver(workers="", shard=1, shards=2, staleness=DropStalePushes(1))
    follower.answer(Join(worker="a", shard=1, shards=2))
    follower.answer(Register(sender=A, declarations=(declared("W", STARTS["W"]),)))
    assert follower.shard.answer_bytes(Pull(sender=A, names=("W",), known_versions=(0,)), at_once=True) == 16, (
        "it may have to wait"
    )
    pushed = push(A, 1, pull=("W", "d"), known_versions=(0, 0))
    assert most_answer_sizes(pushed, spec_of) == [16, 16]
    assert most_answer_sizes(replace(pushed, encoding="bfloat16"), spec_of) == [8, 16]
    assert count(pushed, at_once=True) == 16 == tensor_bytes(shard.answer(pushed))
    table = Declaration(TensorSpec("E", (5, 2)), None, None, RowConstant(1.0))
    first, again = [
        Register(sender=A, declarations=(one, declared("s", STARTS["s"])))
        for one in (table, replace(table, initial=None))
    ]
    assert most_answer_sizes(first, spec_of) == [4], "tables are not sent back"
    for both in (first, again):
        assert count(both) == 4
        assert count(replace(both, dry_run=True)) == 0
        shard.answer(both)
    assert most_answer_sizes(Assign(sender=A, sequence=1, assignments=()), spec_of) == []
    for bad in (Choice("F"), Choice("W", slot="m")):
        with pytest.raises(ParamServerError):
            count(Pull(sender=A, names=(), choices=(bad,)))


def test_rows_are_of_any_integer_dtype_and_in_the_order_asked_for():
    shard = shard_with()
    for dtype in ("int8", "uint8", "int32", "uint64", ">i4"):
        for rows in ([1, 0, 1], []):
            (value,) = shard.answer(Pull(sender=A, names=(), choices=(Choice("W", np.array(rows, dtype)),))).values
            np.testing.assert_array_equal(value.array, STARTS["W"][rows].reshape(-1, 2))
    for rows in ([1.0], [True], [[1]], 1):
        message = Pull(sender=A, names=(), choices=(Choice("W", np.array(rows)),))
        shard.refuse(message, InvalidMessage, r"integers of shape \(n,\), not (float64|bool|int64)\[")
    shard.refuse(
        Pull(sender=A, names=(), choices=(Choice("W", np.array([2**64 - 1], np.uint64)),)),
        InvalidMessage,
        "they span 184467",
    )


def test_a_malformed_packed_gradient_is_refused_with_its_fault():
    rows = IndexedSlices(Packed("bfloat16", (1, 2), (np.array([[1, 0x7FC0]], np.int16),)), np.array([1]), (2, 2))
    infinite = Packed("bfloat16", (2, 2), (np.array([[1, 0x7F80], [0, 0]], np.int16),))
    outside = Packed("topk", (2, 2), (np.array([1, 4], np.int32), np.ones(2, np.float32)))
    for gradient, name, error, match in (
        (to_16_bits(STARTS["W"], "float16"), "d", ShapeMismatch, "gradient for 'd' is float32"),
        (to_16_bits(STARTS["W"][:1], "float16"), "W", ShapeMismatch, "gradient for 'W' is float32"),
        (infinite, "W", NotFinite, "gradient for 'W' has 1 of 4 elements.*; look for NaN"),
        (outside, "W", InvalidMessage, "gradient for 'W' has indices"),
        (rows, "W", NotFinite, "gradient for 'W' has 1 of 2 elements"),
    ):
        shard_with().refuse(push(A, 1, gradient, name), error, match)


# --- values and checks of arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_initial_value_is_copied_and_set_and_added_to_whatever_its_layout_and_dtype(dtype):
    plain = np.arange(6).reshape(2, 3).astype(dtype)
    for given in (plain, plain.copy("F"), np.repeat(plain, 2, 1)[:, ::2], plain.astype(plain.dtype.newbyteorder(">"))):
        expected = given.copy()
        shard = ShardDriver(declared("v", given))
        given[...] = 1
        value = shard.shard._store["v"].value
        np.testing.assert_array_equal(value, expected)
        assert value.flags.c_contiguous
        assert value.dtype == DTYPES[dtype]
        for sequence, add in enumerate((True, False), 1):
            shard.answer(Assign(sender=A, sequence=sequence, assignments=(Assignment("v", given),), add=add))
            np.testing.assert_array_equal(value, expected + given if add else given)


def test_an_addition_wraps_integers_around_and_is_refused_whole_if_it_overflows():
    shard = ShardDriver(declared("v", np.array([200], np.uint8)), declared("w", np.array([6e4], np.float16)))
    value, hundred = shard.shard._store["v"].value, Assignment("v", np.array([100], np.uint8))
    shard.answer(Assign(sender=A, sequence=1, assignments=(hundred,), add=True))
    assert value.tolist() == [44]
    answer = shard.answer(
        Assign(sender=A, sequence=2, assignments=(hundred, Assignment("w", np.array([6e4], np.float16))), add=True)
    )
    with pytest.raises(NotFinite, match=r"what is added for 'w' has 1 of 1 elements .*: nothing was changed"):
        raise answer
    assert value.tolist() == [44]


def test_every_nan_and_infinity_is_found_in_every_layout_and_nothing_else():
    for dtype, size in itertools.product(("float16", "float32", "float64"), (1, 5, 100_000)):
        largest = np.finfo(dtype).max
        for fine in (0, 1, largest, -largest, np.finfo(dtype).smallest_subnormal):
            check_finite("v", np.full(size, fine, dtype), "gradient")
        for bad in (np.nan, np.inf, -np.inf):
            array = np.full(size, largest, dtype)
            array[-1] = bad
            for layout in (array, array[::-1], np.broadcast_to(array, (1, size)), array[:, None].T, array[None, ::-1]):
                with pytest.raises(NotFinite, match=f"gradient for 'v' has 1 of {size:,} elements"):
                    check_finite("v", layout, "gradient")
            for layout in (array[:-1], np.empty((0, 3)), array[:0], np.array(1.5), np.array([2**62], np.int64)):
                check_finite("v", layout, "gradient")
