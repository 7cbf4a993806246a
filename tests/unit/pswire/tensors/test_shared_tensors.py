"""Tensors in shared memory are where their message says, inside of their segment; what was checked stays as it is."""

import mmap

import numpy as np
import pytest

from pswire.codec import from_frame, to_frame
from pswire.errors import Malformed, TooLarge
from pswire.messages import Choice, Gradient, Pull, Push, Sender
from pswire.tensors.compression import Packed
from pswire.tensors.frames import incoming
from pswire.tensors.segments import BEGIN
from pswire.tensors.shared_memory import (
    ALIGNMENT,
    SharedAllocator,
    SharedReceiver,
    SharedSender,
    aligned,
    array_at,
    needed,
    place_of,
)
from pswire.tensors.stream import StreamReceiver
from pswire.tensors.values import IndexedSlices, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

SEED = 20251121


@pytest.fixture
def memory():
    return mmap.mmap(-1, 4096)


def sent(sender, array, name="W"):
    tensor = pb.Tensor(name=name, dtype=array.dtype.name, shape=array.shape)
    sender.put(array, tensor)
    return tensor


@pytest.mark.parametrize(("nbytes", "rounded"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_places_are_rounded_up_to_whole_cache_lines(nbytes, rounded):
    assert aligned(nbytes) == rounded
    assert needed([nbytes, nbytes, 64]) == 2 * rounded + 64


def test_arrays_arrive_as_they_were_sent_and_begin_at_cache_lines(memory):
    generator = np.random.default_rng(SEED)
    arrays = [
        generator.standard_normal((5, 7)).astype(np.float32),
        np.float64(3.5).reshape(()),
        np.zeros((3, 0), np.float16),
        generator.integers(-5, 5, (2, 3, 4)),
        generator.integers(0, 2, 33).astype(bool),
        np.arange(6, dtype=">i4").reshape(2, 3).T,
    ]
    sender, receiver = SharedSender(memory, 3), SharedReceiver({3: memory})
    tensors = [sent(sender, array) for array in arrays]
    assert [(tensor.shared.segment, tensor.shared.offset) for tensor in tensors] == [
        (3, 64),
        (3, 256),
        (3, 320),
        (3, 320),
        (3, 512),
        (3, 576),
    ]
    for array, tensor in zip(arrays, tensors, strict=True):
        arrived = receiver.get(tensor, TensorSpec.of("W", array))
        assert np.array_equal(arrived, array)
        assert arrived.dtype == array.dtype.newbyteorder("<")
    assert needed(array.nbytes for array in arrays) == 576 + 64 - BEGIN


def test_segment_0_at_offset_0_is_a_place_too(memory):
    array_at(memory, 0, TensorSpec("W", (2,)))[:] = [1, 2]
    tensor = pb.Tensor()
    tensor.shared.segment, tensor.shared.offset = 0, 0
    again = pb.Tensor.FromString(tensor.SerializeToString())
    assert SharedReceiver({0: memory}).get(again, TensorSpec("W", (2,))).tolist() == [1, 2]


def test_what_does_not_fit_is_refused_and_what_fits_still_does(memory):
    sender = SharedSender(memory, 0)
    sent(sender, np.zeros(4096 - BEGIN - 128, np.uint8))
    sent(sender, np.zeros(9))
    with pytest.raises(TooLarge, match="no room for the 4 bytes of 'W'"):
        sent(sender, np.zeros(1, np.float32))
    assert sent(sender, np.zeros(0)).shared.offset == 4096
    everything = SharedSender(memory, 0)
    assert sent(everything, np.zeros(4096 - BEGIN, np.uint8)).shared.offset == BEGIN


@pytest.mark.parametrize(
    ("offset", "shape"),
    [
        (32, (1,)),
        (-64, (1,)),
        (4096, (1,)),
        (4032, (17,)),
        (0, (1025,)),
        (4160, (0,)),
        (1 << 62, (1,)),
        (64, (1 << 40,)),
    ],
)
def test_a_place_that_is_outside_or_odd_is_malformed(memory, offset, shape):
    with pytest.raises(Malformed, match=r"variable W float32.* must be inside of the 4,096 bytes .* multiple of 64"):
        array_at(memory, offset, TensorSpec("W", shape))
    tensor = pb.Tensor(shared=pb.Shared(segment=1, offset=offset))
    with pytest.raises(Malformed):
        SharedReceiver({1: memory}).get(tensor, TensorSpec("W", shape))


def test_a_place_may_end_with_its_segment(memory):
    assert array_at(memory, 0, TensorSpec("W", (1024,))).shape == (1024,)
    assert array_at(memory, 4032, TensorSpec("W", (16,))).shape == (16,)
    assert array_at(memory, 4096, TensorSpec("W", (0, 1 << 40))).shape == (0, 1 << 40)


def test_a_segment_that_was_not_attached_is_malformed(memory):
    tensor = pb.Tensor(shared=pb.Shared(segment=2, offset=64))
    with pytest.raises(Malformed, match=r"variable W float32\[1\]: segment 2 was not attached on this stream"):
        SharedReceiver({1: memory}).get(tensor, TensorSpec("W", (1,)))


def test_elements_are_viewed_but_numbers_of_rows_and_bools_cannot_change_once_they_are_checked(memory):
    sender, receiver = SharedSender(memory, 0), SharedReceiver({0: memory})
    weights = receiver.get(sent(sender, np.float32([1, 2])), TensorSpec("W", (2,)))
    halves = receiver.get(sent(sender, np.int16([1, 2])), TensorSpec("W", (2,), "int16"))
    rows = receiver.get(sent(sender, np.array([3, 4])), TensorSpec("W", (2,), "int64"), own=True)
    flags = receiver.get(sent(sender, np.array([True])), TensorSpec("W", (1,), "bool"))
    memory[:] = b"\xff" * len(memory)
    assert np.isnan(weights).all()
    assert halves.tolist() == [-1, -1]
    assert (rows.tolist(), flags.tolist()) == ([3, 4], [True])


def test_what_a_worker_writes_afterwards_reaches_no_number_of_a_row_and_no_place_of_an_element(memory):
    """Wherever a message has them: they were checked, and rules write by them without looking."""
    me, values = Sender("w0", 1), np.ones((2, 3), np.float32)
    rows = IndexedSlices(values, np.array([1, 4]), (5, 3))
    some = Packed("topk", (2000,), (np.int32([3, 7]), np.float32([1, 2])))
    messages = (
        Push(me, 1, (Gradient("E", 0, rows), Gradient("W", 0, some))),
        Pull(me, (), (Choice("E", np.array([0, 2])),)),
    )
    arrived = []
    sender = SharedSender(memory, 0)
    for message in messages:
        frame = incoming(to_frame(message, sender).SerializeToString())
        arrived.append(from_frame(frame, StreamReceiver(None, SharedReceiver({0: memory}))))
    memory[:] = b"\xff" * len(memory)
    push, pull = arrived
    assert np.isnan(push.gradients[0].array.values).all(), "it was in the memory"
    assert push.gradients[0].array.indices.tolist() == [1, 4]
    assert push.gradients[1].array.parts[0].tolist() == [3, 7]
    assert pull.choices[0].rows.tolist() == [0, 2]


def test_a_bool_that_is_neither_0_nor_1_is_malformed(memory):
    tensor = sent(SharedSender(memory, 0), np.array([True, False]))
    memory[BEGIN + 1] = 2
    with pytest.raises(Malformed, match="a bool travels as the byte 0 or 1"):
        SharedReceiver({0: memory}).get(tensor, TensorSpec("W", (2,), "bool"))


def test_places_that_overlap_do_not_make_copies_of_more_than_the_segments_have_twice(memory):
    """A small message would otherwise take any amount of memory; each message may be decoded two times."""
    spec = TensorSpec("rows", (len(memory) // 8,), "int64")
    tensor = pb.Tensor(shared=pb.Shared(segment=0, offset=0))
    for _ in range(2):
        receiver = SharedReceiver({0: memory})
        for _ in range(2):
            receiver.get(tensor, spec, own=True)
        with pytest.raises(Malformed, match=r"variable rows .*: its place overlaps those of other tensors"):
            receiver.get(tensor, TensorSpec("rows", (1,), "int64"), own=True)
        assert receiver.get(tensor, TensorSpec("W", (2,))).nbytes == 8, "a view takes no memory"


def test_a_room_gives_one_array_after_the_other_until_it_is_full(memory):
    allocator = SharedAllocator(memory, 128, 192)
    first, second = allocator.take(TensorSpec("a", (3,))), allocator.take(TensorSpec("b", (8,), "float64"))
    assert [place_of(array, {5: memory}) for array in (first, second)] == [(5, 128), (5, 192)]
    assert allocator.take(TensorSpec("c", (17,))) is None
    last = allocator.take(TensorSpec("d", (16,)))
    assert allocator.take(TensorSpec("e", (1,))) is None
    first[...], second[...], last[...] = 1, 2, 3
    assert np.frombuffer(memory, np.float32, 3, 128).tolist() == [1, 1, 1]
    assert np.frombuffer(memory, np.float64, 8, 192).tolist() == [2] * 8
    assert not any(memory[320:])


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 4097), (4096, 1), (64, -1), (-64, 64), (8, 8), (0, 1 << 62)])
def test_a_room_that_is_not_inside_of_its_segment_is_malformed(memory, offset, nbytes):
    with pytest.raises(Malformed, match=r"room: its .* bytes must be inside"):
        SharedAllocator(memory, offset, nbytes)


def test_the_place_of_an_array_is_known_by_its_address(memory):
    other = mmap.mmap(-1, 4096)
    memories = {1: memory, 2: other}
    whole = array_at(other, 64, TensorSpec("W", (8, 16)))
    assert place_of(whole, memories) == (2, 64)
    assert place_of(whole[1:], memories) == (2, 64 + ALIGNMENT)
    for remote in (np.zeros(3), whole.copy(), whole[:, 1:], whole.T, whole[0, 1:]):
        assert place_of(remote, memories) is None
    assert place_of(whole, {1: memory}) is None
    assert place_of(whole, {}) is None


def test_arrays_keep_their_memory_when_nobody_else_does(memory):
    memories = {0: mmap.mmap(-1, 4096)}
    array = SharedReceiver(memories).get(sent(SharedSender(memories[0], 0), np.float32([1, 2])), TensorSpec("W", (2,)))
    memories.clear()
    assert array.tolist() == [1, 2]
