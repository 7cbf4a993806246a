"""Arrays of a message that its answer may be written over, and those that must stay."""

import numpy as np
import pytest

from psserver.rpc.transfer_memory import ReusedArrays
from pswire.messages import Assign, Assignment, Choice, Declaration, Gradient, Pull, Push, Register, Sender
from pswire.tensors.compression import quantize_int8, to_16_bits, top_k
from pswire.tensors.values import IndexedSlices, TensorSpec

ME = Sender("w0", 1)
SPEC = TensorSpec("W", (2, 3))


def pushed(array, name="W"):
    return ReusedArrays(Push(ME, 1, (Gradient(name, 0, array),), None, ("W",)))


def zeros(dtype="f4", shape=(2, 3)):
    return np.zeros(shape, dtype)


def test_an_array_is_given_out_once_and_only_for_its_own_variable():
    """Another variable's array task may still read it."""
    own, other = zeros(), zeros()
    allocator = ReusedArrays(Push(ME, 1, (Gradient("V", 0, other), Gradient("W", 0, own)), None, ("W", "W", "V")))
    assert allocator.take(SPEC) is own
    assert allocator.take(SPEC) is None
    assert allocator.take(TensorSpec("V", (2, 3))) is other
    registered = ReusedArrays(Register(ME, (Declaration(SPEC, own), Declaration(TensorSpec("V", (2,)), None))))
    assert registered.take(TensorSpec("V", (2,))) is None
    assert registered.take(SPEC) is own


@pytest.mark.parametrize("form", ["bfloat16", "float16"])
def test_encoded_values_replace_encoded_gradients_only(form):
    gradient = to_16_bits(zeros(), form)
    allocator = pushed(gradient)
    assert allocator.take(SPEC) is None
    assert allocator.take(TensorSpec("W", (2, 3), "int16")) is gradient.parts[0]
    assert pushed(zeros()).take(TensorSpec("W", (2, 3), "int16")) is None


UNFIT = {
    "read-only": np.frombuffer(bytes(24), "f4").reshape(2, 3),
    "column by column": zeros(shape=(3, 2)).T,
    "big-endian": zeros(">f4"),
    "float64": zeros("f8"),
    "flat": zeros(shape=(6,)),
    "hollow": np.broadcast_to(np.float32(0), (2, 3)),
    "rows": IndexedSlices(zeros(), np.array([0, 1]), (2, 3)),
}


@pytest.mark.parametrize("array", UNFIT.values(), ids=UNFIT)
def test_an_array_that_cannot_hold_the_value_is_not_given_out(array):
    assert pushed(array).take(SPEC) is None


@pytest.mark.parametrize("pack", [lambda a, r: top_k(a, r, 6), quantize_int8], ids=["topk", "int8"])
def test_compressed_gradients_are_never_written_over(pack):
    """A stretch of the answer may be written while others of the gradient are still to be read."""
    gradient = pack(np.ones(6, "f4"), np.zeros(6, "f4"))
    allocator = pushed(gradient)
    assert all(allocator.take(TensorSpec.of("W", part)) is None for part in gradient.parts)


@pytest.mark.parametrize(
    "message", [Pull(ME, ("W",), (Choice("W", np.zeros(6, "i4")),)), Assign(ME, 1, (Assignment("W", zeros()),))]
)
def test_other_messages_have_no_arrays_to_reuse(message):
    assert ReusedArrays(message).take(SPEC) is None
