"""Tensors that follow their message in chunks arrive whole, whatever the chunks' borders, and no more than declared."""

import itertools
import random

import numpy as np
import pytest

from pswire.errors import Malformed, TooLarge
from pswire.tensors.inline import InlineReceiver
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import CHUNK, FEW, MOST_OF_FEW
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb

SEED = 20250608
STREAMED = pb.Tensor(streamed=True)


def chunks_of(*arrays):
    sender = StreamSender(few=0)
    for array in arrays:
        tensor = pb.Tensor(name="x", dtype=array.dtype.name, shape=array.shape)
        sender.put(array, tensor)
        assert tensor.WhichOneof("place") == "streamed"
        assert tensor.streamed
    return [b"".join(pieces) for pieces in sender.chunks()]


def receiver_of(*specs):
    receiver = StreamReceiver()
    for spec in specs:
        receiver.get(STREAMED, spec)
    receiver.allocate()
    return receiver, [receiver.get(STREAMED, spec) for spec in specs]


def example():
    generator = np.random.default_rng(SEED)
    return {
        "weights": generator.standard_normal((40, 7)).astype(np.float32),
        "empty": np.zeros((3, 0), np.float64),
        "scalar": np.float64(3.5).reshape(()),
        "flags": generator.integers(0, 2, 33).astype(bool),
        "indices": generator.integers(-5, 5, (2, 3, 4)),
    }


def test_chunks_are_full_and_run_across_tensors():
    arrays = [np.full(CHUNK // 2 + 3, number, np.uint8) for number in range(5)]
    chunks = chunks_of(*arrays)
    assert [len(chunk) for chunk in chunks] == [CHUNK, CHUNK, CHUNK // 2 + 15]
    assert b"".join(chunks) == b"".join(array.tobytes() for array in arrays)


def test_a_tensor_of_whole_chunks_leaves_no_empty_chunk_behind():
    assert [len(chunk) for chunk in chunks_of(np.zeros(2 * CHUNK, np.int8))] == [CHUNK, CHUNK]


def test_small_tensors_share_a_chunk_and_no_element_makes_none():
    assert [len(chunk) for chunk in chunks_of(*(np.zeros(10, np.float32) for _ in range(100)))] == [4000]
    assert chunks_of(np.zeros((0, 3))) == []
    assert chunks_of() == []


def test_a_few_elements_travel_inside_of_their_message_and_many_such_tensors_behind_it():
    sender = StreamSender()
    tensors = [pb.Tensor(name="x", dtype="uint8", shape=(FEW - 1,)) for _ in range(MOST_OF_FEW // FEW + 10)]
    for number, tensor in enumerate(tensors):
        sender.put(np.full(FEW - 1, number, np.uint8), tensor)
    inside = [tensor for tensor in tensors if tensor.WhichOneof("place") == "inline"]
    assert [tensor.inline for tensor in inside] == [bytes([number]) * (FEW - 1) for number in range(len(inside))]
    assert sum(len(tensor.inline) for tensor in inside) <= MOST_OF_FEW
    assert sender.nbytes == (FEW - 1) * (len(tensors) - len(inside)) > 0
    assert all(tensor.streamed for tensor in tensors[len(inside) :])


def test_chunks_are_little_endian_and_in_c_order():
    array = np.arange(6, dtype=">i4").reshape(2, 3)
    assert chunks_of(array.T) == [np.array([0, 3, 1, 4, 2, 5], "<i4").tobytes()]


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_arrays_arrive_whole_whatever_the_borders_of_the_chunks(seed):
    arrays = example()
    receiver, received = receiver_of(*(TensorSpec.of(name, array) for name, array in arrays.items()))
    data = b"".join(chunks_of(*arrays.values()))
    generator = random.Random(seed)
    borders = sorted(generator.randint(0, len(data)) for _ in range(generator.randint(0, 60)))
    for start, stop in itertools.pairwise([0, *borders, len(data)]):
        receiver.feed(data[start:stop])
    assert receiver.complete
    for array, arrived in zip(arrays.values(), received, strict=True):
        assert arrived.dtype == array.dtype
        assert np.array_equal(arrived, array)


def test_arrays_arrive_whole_byte_by_byte():
    arrays = example()
    receiver, received = receiver_of(*(TensorSpec.of(name, array) for name, array in arrays.items()))
    data = b"".join(chunks_of(*arrays.values()))
    for place in range(len(data)):
        assert not receiver.complete
        receiver.feed(data[place : place + 1])
    assert receiver.complete
    assert all(np.array_equal(*pair) for pair in zip(arrays.values(), received, strict=True))


def test_hollow_arrays_have_shape_and_dtype_but_no_memory():
    receiver = StreamReceiver()
    spec = TensorSpec("huge", (1 << 20, 1 << 22), "float64")
    hollow = receiver.get(STREAMED, spec)
    assert spec.matches(hollow)
    assert hollow.strides == (0, 0)
    assert not hollow.flags.writeable
    assert receiver.nbytes == spec.nbytes == hollow.nbytes == 1 << 45
    assert not receiver.complete


def test_the_declared_bytes_are_those_of_all_tensors():
    receiver = StreamReceiver()
    assert receiver.nbytes == 0
    for name, array in example().items():
        receiver.get(STREAMED, TensorSpec.of(name, array))
    assert receiver.nbytes == sum(array.nbytes for array in example().values())


def test_tensors_are_known_by_their_order_and_not_by_their_names():
    receiver, arrays = receiver_of(TensorSpec("W", (2,)), TensorSpec("W", (3,), "int64"), TensorSpec("W", (2,)))
    assert [(array.shape, array.dtype.name) for array in arrays] == [
        ((2,), "float32"),
        ((3,), "int64"),
        ((2,), "float32"),
    ]
    receiver.feed(np.float32([1, 2]).tobytes() + np.arange(3).tobytes() + np.float32([3, 4]).tobytes())
    assert [array.tolist() for array in arrays] == [[1, 2], [0, 1, 2], [3, 4]]


def test_allocated_arrays_are_writable():
    _, (array,) = receiver_of(TensorSpec("W", (2, 2)))
    assert array.flags.writeable
    assert array.flags.aligned


def test_tensors_without_elements_are_complete_when_allocated():
    receiver, _ = receiver_of(TensorSpec("a", (0, 5)), TensorSpec("b", (3, 0, 2), "bool"))
    assert receiver.complete
    receiver.feed(b"")
    with pytest.raises(Malformed, match="0 bytes were declared, and 1 bytes more"):
        receiver.feed(b"1")


def test_more_bytes_than_declared_are_refused():
    receiver, _ = receiver_of(TensorSpec("a", (2,)))
    receiver.feed(bytes(8))
    with pytest.raises(Malformed, match="tensors of 8 bytes were declared, and 3 bytes more have come"):
        receiver.feed(bytes(3))
    receiver, _ = receiver_of(TensorSpec("a", (2,)))
    with pytest.raises(Malformed, match="1 bytes more"):
        receiver.feed(bytes(9))


def test_bytes_before_memory_is_allocated_are_refused():
    receiver = StreamReceiver()
    receiver.get(STREAMED, TensorSpec("a", (2,)))
    with pytest.raises(Malformed):
        receiver.feed(bytes(8))


def test_memory_that_the_machine_does_not_have_is_an_error_of_ours():
    receiver = StreamReceiver()
    receiver.get(STREAMED, TensorSpec("huge", (1 << 60,), "uint8"))
    with pytest.raises(TooLarge, match=f"no memory for tensors of {1 << 60} bytes"):
        receiver.allocate()


def test_a_streamed_bool_that_is_neither_0_nor_1_is_refused_when_it_comes():
    receiver, _ = receiver_of(TensorSpec("b", (1,), "uint8"), TensorSpec("flags", (4,), "bool"))
    receiver.feed(b"\7\1\0")
    with pytest.raises(Malformed, match=r"variable flags.*a bool travels as the byte 0 or 1"):
        receiver.feed(b"\2")


def test_a_bool_in_the_data_of_a_frame_that_is_neither_0_nor_1_is_refused():
    spec, tensor = TensorSpec("flags", (2,), "bool"), pb.Tensor(streamed=True)
    assert StreamReceiver(memoryview(b"\0\1")).get(tensor, spec).tolist() == [False, True]
    with pytest.raises(Malformed, match=r"variable flags.*a bool travels as the byte 0 or 1"):
        StreamReceiver(memoryview(b"\1\2")).get(tensor, spec)


def test_a_stream_takes_tensors_that_are_inside_of_their_message_and_refuses_those_that_are_nowhere():
    spec, receiver = TensorSpec("W", (1,)), StreamReceiver()
    assert receiver.get(pb.Tensor(inline=np.float32([5]).tobytes()), spec) == [5]
    assert receiver.nbytes == 0
    for tensor in (pb.Tensor(), pb.Tensor(streamed=False)):
        with pytest.raises(Malformed, match=r"variable W float32\[1\]: its elements are not in the message"):
            receiver.get(tensor, spec)


def test_an_inline_array_without_elements_needs_its_place_all_the_same():
    spec = TensorSpec("W", (0, 2))
    assert InlineReceiver().get(pb.Tensor(inline=b""), spec).shape == (0, 2)
    with pytest.raises(Malformed, match="not in the message"):
        InlineReceiver().get(pb.Tensor(), spec)
