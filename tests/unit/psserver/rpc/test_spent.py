"""Spent messages: which of their arrays may be written over, and that nobody gets one that others may still read."""

import numpy as np
import pytest

from psserver.rpc.reused_buffers import Spent
from pswire.messages import Assign, Assignment, Choice, Declaration, Gradient, Pull, Push, Register, Sender
from pswire.tensors.compression import largest, packed, quantized
from pswire.tensors.values import IndexedSlices, TensorSpec

ME = Sender("w0", 1)
SPEC = TensorSpec("W", (2, 3))


def pushed(array, name="W"):
    return Spent(Push(ME, 1, (Gradient(name, 0, array),), None, ("W",)))


def test_an_array_is_handed_out_once_and_only_for_its_own_variable():
    own, other = np.zeros((2, 3), "f4"), np.ones((2, 3), "f4")
    allocator = Spent(Push(ME, 1, (Gradient("V", 0, other), Gradient("W", 0, own)), None, ("W", "W", "V")))
    assert allocator.take(SPEC) is own
    assert allocator.take(SPEC) is None, (
        "its variable's second copy, and V's array is not free: V may be updated meanwhile"
    )
    assert allocator.take(TensorSpec("V", (2, 3))) is other
    assert pushed(np.zeros((2, 3), "f4"), "V").take(SPEC) is None


def test_initial_values_are_handed_out_too():
    value = np.zeros((2, 3), "f4")
    allocator = Spent(Register(ME, (Declaration(SPEC, value), Declaration(TensorSpec("V", (2,)), None))))
    assert allocator.take(TensorSpec("V", (2,))) is None
    assert allocator.take(SPEC) is value


@pytest.mark.parametrize("form", ["bfloat16", "float16"])
def test_bits_take_the_place_of_bits_and_not_of_numbers(form):
    gradient = packed(np.zeros((2, 3), "f4"), form)
    allocator = pushed(gradient)
    assert allocator.take(SPEC) is None
    assert allocator.take(TensorSpec("W", (2, 3), "int16")) is gradient.parts[0]
    assert pushed(np.zeros((2, 3), "f4")).take(TensorSpec("W", (2, 3), "int16")) is None


def locked(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        locked(np.zeros((2, 3), "f4")),
        np.zeros((3, 2), "f4").T,
        np.zeros((2, 3), ">f4"),
        np.zeros((2, 3), "f8"),
        np.zeros((6,), "f4"),
        np.broadcast_to(np.zeros((), "f4"), (2, 3)),
        IndexedSlices(np.zeros((2, 3), "f4"), np.array([0, 1]), (2, 3)),
    ],
    ids=["read-only", "column by column", "big-endian", "float64", "flat", "hollow", "rows"],
)
def test_what_cannot_hold_the_value_is_kept(array):
    assert pushed(array).take(SPEC) is None


@pytest.mark.parametrize("pack", [lambda a, r: largest(a, r, 6), quantized], ids=["topk", "int8"])
def test_forms_in_which_elements_say_where_others_belong_are_never_written_over(pack):
    """A stretch of the answer may be written while others of the gradient are still to be read."""
    gradient = pack(np.ones(6, "f4"), np.zeros(6, "f4"))
    allocator = pushed(gradient)
    assert all(allocator.take(TensorSpec.of("W", part)) is None for part in gradient.parts)


@pytest.mark.parametrize(
    "message",
    [Pull(ME, ("W",), (Choice("W", np.zeros(6, "i4")),)), Assign(ME, 1, (Assignment("W", np.zeros((2, 3), "f4")),))],
    ids=lambda message: type(message).__name__,
)
def test_other_messages_have_nothing_of_use(message):
    assert Spent(message).take(SPEC) is None
