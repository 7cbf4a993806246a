"""Values of answers: only modified ones, in the encoding asked for, in memory of the caller; packed gradients."""

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire.errors import InvalidMessage, NotFinite, ShapeMismatch
from pswire.messages import (
    Choice,
    Declaration,
    Gradient,
    Join,
    Outcome,
    Pull,
    Push,
    Register,
    Renew,
    Sender,
    Status,
    Tick,
)
from pswire.messages.sizes import tensor_bytes
from pswire.optimizers import Adagrad, GradientDescent
from pswire.specs.consistency import DelayCompensation, Synchronous
from pswire.specs.encodings import ENCODINGS
from pswire.tensors.compression import Packed, packed
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.shard_state import state_of

A, B = Sender("a", 1), Sender("b", 1)
STARTS = {
    "W": np.array([[1.0, -2.0], [3.25, 1e-3]], np.float32),
    "d": np.array([0.1, 0.2]),
    "s": np.array(0.3, np.float32),
}


class Lent:
    """Memory of the asker's: `taken` has what the shard took of it."""

    def __init__(self, *without):
        self.without, self.taken = without, []

    def take(self, spec):
        if spec.name in self.without:
            return None
        self.taken.append((spec, np.full(spec.shape, 77, spec.dtype)))
        return self.taken[-1][1]


def shard_with(optimizer=None, **options):
    shard = Shard(**options)
    for worker in "ab":
        say(shard, Join(worker))
    optimizer = optimizer or GradientDescent(1.0)
    say(shard, Register(A, tuple(Declaration(TensorSpec.of(n, v), v, optimizer) for n, v in STARTS.items())))
    return shard


def say(shard, message, ticket=1, **options):
    """The answer, when the tasks are done."""
    answers = freed(shard, message, ticket, **options)
    return answers.get(ticket)


def freed(shard, message, ticket, **options):
    work = shard.step(ticket, message, 0.0, **options)
    for task in work.tasks:
        task.run()
    return {reply.ticket: reply.answer for reply in work.replies}


def push(sender, sequence, name="W", gradient=None, version=0, pull=(), **options):
    gradient = np.ones_like(STARTS[name]) if gradient is None else gradient
    return Push(sender, sequence, (Gradient(name, version, gradient),), None, pull, **options)


def refused(shard, message, error, match):
    before = state_of(shard)
    with pytest.raises(error, match=match):
        shard.step(1, message, 0.0)
    assert state_of(shard) == before


# --- what the asker has -----------------------------------------------------------------------------------------------


def test_a_value_at_its_known_version_is_not_copied():
    shard = shard_with()
    say(shard, push(A, 1))
    work = shard.step(1, Pull(B, ("d", "W", "s"), known_versions=(0, 0, -1)), 0.0)
    values = work.replies[0].answer.values
    assert [(one.name, one.version, one.array is None) for one in values] == [
        ("d", 0, True),
        ("W", 1, False),
        ("s", 0, False),
    ]
    assert [task.variable for task in work.tasks] == ["W", "s"]
    assert tensor_bytes(work.replies[0].answer) == 16 + 4


def test_a_push_serves_what_it_changes_and_other_values_only_if_modified():
    shard = shard_with()
    values = say(shard, push(A, 1, pull=("W", "d"), known_versions=(0, 0))).values
    assert [(one.version, one.array is None) for one in values] == [(1, False), (0, True)]
    np.testing.assert_array_equal(values[0].array, STARTS["W"] - 1)


# --- the wire ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "allocator", [None, Lent(), Lent("W", "s")], ids=["no allocator", "allocator", "allocator for some"]
)
def test_values_of_float32_are_encoded_and_others_are_not(encoding, allocator):
    shard = shard_with(Adagrad(0.5, initial_accumulator=0.1))
    choices = (Choice("W", np.array([1, 1, 0])), Choice("W", slot="accumulator"), Choice("d", np.array([1])))
    values = say(shard, Pull(A, ("d", "W", "s"), choices, encoding=encoding), allocator=allocator).values
    wanted = [*(STARTS[name] for name in ("d", "W", "s")), STARTS["W"][[1, 1, 0]], np.full((2, 2), 0.1, "f4")]
    for value, array in zip(values, [*wanted, STARTS["d"][[1]]], strict=True):
        if array.dtype == np.float64:
            np.testing.assert_array_equal(value.array, array)
        else:
            assert isinstance(value.array, Packed)
            assert state_of(value.array) == state_of(packed(array, encoding))
            assert not value.array.parts[0].flags.writeable
    pushed = say(shard, push(A, 1, pull=("W",), encoding=encoding))
    assert isinstance(pushed.values[0].array, Packed)


# --- allocators -------------------------------------------------------------------------------------------------------


def test_values_are_written_into_memory_of_the_allocator_in_order_and_are_read_only():
    shard, allocator = shard_with(), Lent("s")
    choices = (Choice("W", np.array([1])), Choice("d"))
    values = say(shard, Pull(A, ("d", "s", "W"), choices, known_versions=(-1, -1, -1)), allocator=allocator).values
    assert [spec.name for spec, _ in allocator.taken] == ["d", "W", "W", "d"]
    lent = [array for _, array in allocator.taken]
    for value, array in zip([values[0], *values[2:]], lent, strict=True):
        assert np.shares_memory(value.array, array)
        assert not value.array.flags.writeable
    np.testing.assert_array_equal(lent[1], STARTS["W"])
    np.testing.assert_array_equal(lent[2], STARTS["W"][[1]])
    np.testing.assert_array_equal(values[1].array, STARTS["s"])


def test_a_held_push_is_answered_in_memory_of_its_own_allocator():
    shard, allocators = shard_with(consistency=Synchronous(2)), [Lent(), Lent(), Lent()]
    message = push(A, 1, pull=("W",))
    assert freed(shard, message, 5, allocator=allocators[0]) == {}
    assert set(freed(shard, message, 6, allocator=allocators[1])) == {5}, "the retry takes its place"
    answers = freed(shard, push(B, 1, gradient=STARTS["W"], pull=("W",)), 7, allocator=allocators[2])
    assert not allocators[0].taken
    for ticket, allocator in ((6, allocators[1]), (7, allocators[2])):
        ((_, array),) = allocator.taken
        assert np.shares_memory(answers[ticket].values[0].array, array)
        np.testing.assert_array_equal(array, STARTS["W"] - (1 + STARTS["W"]) / 2)
    assert say(shard, message, allocator=allocators[0]).outcome is Outcome.REPEATED
    assert len(allocators[0].taken) == 1


def test_with_delay_compensation_no_value_lies_in_memory_of_an_allocator():
    shard, allocator = shard_with(staleness=DelayCompensation(0.5)), Lent()
    (value,) = say(shard, Pull(A, ("W",)), allocator=allocator).values
    assert not allocator.taken
    say(shard, push(B, 1))
    now, then, gradient = STARTS["W"] - 1, STARTS["W"], np.full((2, 2), 2, np.float32)
    (value,) = say(shard, push(A, 1, gradient=gradient, pull=("W",))).values
    np.testing.assert_allclose(value.array, now - (gradient + 0.5 * 4 * (now - then)), rtol=1e-6)


@pytest.mark.parametrize("encoding", ["", "bfloat16"])
def test_delay_is_compensated_by_weights_that_were_not_sent_again(encoding):
    shard = shard_with(staleness=DelayCompensation(0.5))
    served = say(shard, Pull(A, ("W",), encoding=encoding)).values[0].array
    assert say(shard, Pull(A, ("W",), known_versions=(0,), encoding=encoding)).values[0].array is None
    say(shard, push(B, 1))
    then = served.unpacked() if encoding else served
    now = STARTS["W"] - 1
    (value,) = say(shard, push(A, 1, gradient=np.full((2, 2), 2, np.float32), pull=("W",))).values
    np.testing.assert_allclose(value.array, now - (2 + 0.5 * 4 * (now - then)), rtol=1e-6)


# --- how much it will be ----------------------------------------------------------------------------------------------


def test_bytes_of_an_answer_are_counted_as_they_will_travel():
    shard = shard_with()
    everything = Pull(A, ("W", "d"), (Choice("W", np.array([1, 1])), Choice("d")))
    assert shard.answer_bytes(everything) == 16 + 16 + 16 + 16
    packed_ = Pull(A, everything.names, everything.choices, encoding="float16")
    assert shard.answer_bytes(packed_) == 8 + 16 + 8 + 16 == tensor_bytes(say(shard, packed_))
    known = Pull(A, ("W", "d"), known_versions=(0, 3))
    assert shard.answer_bytes(known) == 32, "it may be modified until the step is taken"
    assert shard.answer_bytes(known, at_once=True) == 16 == tensor_bytes(say(shard, known))
    pushed = push(A, 1, pull=("W", "d"), known_versions=(0, 0))
    assert shard.answer_bytes(pushed, at_once=True) == 16 == tensor_bytes(say(shard, pushed))


# --- packed gradients -------------------------------------------------------------------------------------------------


def test_only_float32_of_the_right_shape_can_be_packed():
    shard = shard_with()
    for gradient, name in ((packed(STARTS["W"], "float16"), "d"), (packed(STARTS["W"][:1], "float16"), "W")):
        refused(shard, push(A, 1, name, gradient), ShapeMismatch, "gradient for .* is float32")


def test_a_malformed_packed_gradient_is_refused_with_its_fault():
    shard = shard_with()
    infinite = Packed("bfloat16", (2, 2), (np.array([[1, 0x7F80], [0, 0]], np.int16),))
    refused(shard, push(A, 1, gradient=infinite), NotFinite, "gradient for 'W' has 1 of 4 elements.*; lower the lear")
    outside = Packed("topk", (2, 2), (np.array([1, 4], np.int32), np.ones(2, np.float32)))
    refused(shard, push(A, 1, gradient=outside), InvalidMessage, "gradient for 'W' has places")
    rows = IndexedSlices(Packed("bfloat16", (1, 2), (np.array([[1, 0x7FC0]], np.int16),)), np.array([1]), (2, 2))
    refused(shard, push(A, 1, gradient=rows), NotFinite, "gradient for 'W' has 1 of 2 elements")


# --- lanes ------------------------------------------------------------------------------------------------------------


def test_the_status_has_the_tensor_transport_that_a_worker_named_last():
    shard = Shard()
    say(shard, Join("a", tensor_transport="shared memory", life=3))
    say(shard, Join("b"))

    def lanes():
        return [one.tensor_transport for one in say(shard, Status()).workers]

    assert lanes() == ["shared memory", ""]
    say(shard, Renew(A))
    say(shard, Join("a", life=3))
    say(shard, Tick())
    assert lanes() == ["shared memory", ""]
    say(shard, Renew(B, tensor_transport="shared memory"))
    say(shard, Renew(A, tensor_transport="gRPC"))
    assert lanes() == ["gRPC", "shared memory"]
