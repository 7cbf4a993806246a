"""Arrays of a message that its answer may be written over, and those that must stay."""

import numpy as np
import pytest

from psserver.rpc.transfer_memory import ReusedArrays
from pswire import messages as ms
from pswire.tensors.compression import quantize_int8, to_16_bits, top_k
from pswire.tensors.values import IndexedSlices, TensorSpec

ME = ms.Sender("w0", 1)
SPEC = TensorSpec("W", (2, 3))


def pushed(**arrays):
    return ReusedArrays(ms.Push(ME, 1, tuple(ms.Gradient(name, 0, array) for name, array in arrays.items())))


def zeros(dtype="f4", shape=(2, 3)):
    return np.zeros(shape, dtype)


def test_an_array_is_given_out_once_and_only_for_its_own_variable():
    """Another variable's array task may still read it."""
    own, other, encoded = zeros(), zeros(), to_16_bits(zeros(), "bfloat16")
    allocator = pushed(V=other, W=own, X=encoded)
    assert allocator.take(SPEC) is own
    assert allocator.take(SPEC) is None
    assert allocator.take(TensorSpec("V", (2, 3))) is other
    assert allocator.take(TensorSpec("X", (2, 3), "int16")) is encoded.parts[0]
    declared = ms.Declaration(SPEC, own), ms.Declaration(TensorSpec("V", (2,)), None)
    registered = ReusedArrays(ms.Register(ME, declared))
    assert registered.take(TensorSpec("V", (2,))) is None
    assert registered.take(SPEC) is own
    assert ReusedArrays(ms.Assign(ME, 1, (ms.Assignment("W", zeros()),))).take(SPEC) is None


UNFIT = {
    "read-only": np.frombuffer(bytes(24), "f4").reshape(2, 3),
    "column by column": zeros(shape=(3, 2)).T,
    "big-endian": zeros(">f4"),
    "flat": zeros(shape=(6,)),
    "rows": IndexedSlices(zeros(), np.array([0, 1]), (2, 3)),
    "encoded": to_16_bits(zeros(), "float16"),
}


@pytest.mark.parametrize("array", UNFIT.values(), ids=UNFIT)
def test_an_array_that_cannot_hold_the_value_is_not_given_out(array):
    assert pushed(W=array).take(SPEC) is None


@pytest.mark.parametrize("compress", [lambda a, r: top_k(a, r, 6), quantize_int8], ids=["topk", "int8"])
def test_compressed_gradients_are_never_written_over(compress):
    """A stretch of the answer may be written while others of the gradient are still to be read."""
    gradient = compress(np.ones(6, "f4"), np.zeros(6, "f4"))
    assert all(pushed(W=gradient).take(TensorSpec.of("W", part)) is None for part in gradient.parts)
