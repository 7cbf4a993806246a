"""The contract of the tensor transports, the same tests for all of them; then what is special to one; and frames."""

import itertools
import math
import mmap
import random

import numpy as np
import pytest

from pswire.codec import from_frame, to_frame
from pswire.errors import Malformed, TooLarge
from pswire.messages import Choice, Gradient, Pull, Push, Sender
from pswire.tensors.compression import Packed
from pswire.tensors.frame import ALIGNMENT, Incoming, chunk, incoming, with_data
from pswire.tensors.shared_memory import Region, SharedReceiver, array_at, bytes_needed
from pswire.tensors.stream import INLINE_BELOW, MAX_INLINED, StreamReceiver, StreamSender
from pswire.tensors.transport import CHUNK, MAX_INLINE_MESSAGE, InlineReceiver, InlineSender
from pswire.tensors.values import DTYPES, IndexedSlices, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

SEED = 20251121
HEADER = pb.Frame(pull=pb.PullRequest(sender=pb.Sender(worker="w", incarnation=3), names=["W", "b"]))


def put(sender, *arrays):
    tensors = [pb.Tensor(name="W", dtype=array.dtype.name, shape=array.shape) for array in arrays]
    for array, tensor in zip(arrays, tensors, strict=True):
        sender.put(array, tensor)
    return tensors


def received(receiver, tensors, specs):
    return [receiver.get(*pair) for pair in zip(tensors, specs, strict=True)]


def inline(arrays, specs):
    return received(InlineReceiver(), put(InlineSender(), *arrays), specs)


def streamed(arrays):
    sender = StreamSender(few=0)
    return put(sender, *arrays), b"".join(itertools.chain.from_iterable(sender.chunks()))


def frame_data(arrays, specs):
    tensors, data = streamed(arrays)
    receiver = StreamReceiver(memoryview(data))
    arrived = received(receiver, tensors, specs)
    receiver.check_data()
    return arrived


def chunks(arrays, specs):
    tensors, data = streamed(arrays)
    receiver, dice = StreamReceiver(), random.Random(SEED)
    for spec, hollow in zip(specs, received(receiver, tensors, specs), strict=True):
        assert spec.matches(hollow)
    receiver.allocate()
    arrived = received(receiver, tensors, specs)
    cuts = sorted(dice.sample(range(1, max(2, len(data))), min(60, max(1, len(data)) - 1)))
    for start, stop in itertools.pairwise([0, *cuts, len(data)]):
        receiver.feed(incoming(chunk([memoryview(data[start:stop])])))
    if not receiver.complete:
        raise Malformed("incomplete")
    return arrived


def segment(nbytes):
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


def shared_memory(arrays, specs):
    memory = segment(bytes_needed([array.nbytes for array in arrays]) or 1)
    return received(SharedReceiver({3: memory}), put(Region(3, memory), *arrays), specs)


all_transports = pytest.mark.parametrize("transport", [inline, frame_data, chunks, shared_memory])


@all_transports
def test_arrays_arrive_bit_by_bit_as_they_were_sent_little_endian_aligned_and_in_order(transport):
    generator, arrays = np.random.default_rng(SEED), []
    for dtype, shape in itertools.product(DTYPES, [(), (0,), (1,), (33,), (2, 0, 3), (40, 7), (1,) * 16]):
        limit = 2 if dtype == "bool" else 256
        bits = generator.integers(0, limit, math.prod(shape) * DTYPES[dtype].itemsize, np.uint8)
        array = bits.view(dtype).reshape(shape)
        arrays += [array, array.byteswap().view(array.dtype.newbyteorder()).T]
    arrived = transport(arrays, [TensorSpec.of("W", array) for array in arrays])
    for array, other in zip(arrays, arrived, strict=True):
        assert other.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
        assert (other.dtype, other.shape) == (array.dtype.newbyteorder("<"), array.shape)
        assert other.flags.aligned
        assert other.flags.writeable == (transport in (chunks, shared_memory))


@all_transports
def test_other_elements_than_were_declared_are_malformed_before_memory_is_allocated(transport):
    exabytes = 1 << (20 if transport is chunks else 40)  # of a stream the receiver checks limits before
    numbers = [(np.zeros(1999, np.float32), size, "float32") for size in (2001, exabytes, 2)]
    for sent, size, dtype in ((np.uint8([0, 2]), 2, "bool"), *numbers):
        if transport is shared_memory and len(sent) > size:
            continue  # a segment has other memory after these elements
        with pytest.raises(Malformed) as caught:
            transport([sent], [TensorSpec("W", (size,), dtype)])
        assert ("W bool[2]: a bool is sent as the byte 0 or 1" in str(caught.value)) == (dtype == "bool")


@pytest.mark.parametrize("receiver", [InlineReceiver(), StreamReceiver(), SharedReceiver({})])
@pytest.mark.parametrize("place", [{}, {"streamed": False}, {"shared": pb.Shared(segment=2, offset=64)}])
def test_a_tensor_that_is_nowhere_is_malformed_even_without_elements(receiver, place):
    with pytest.raises(Malformed, match=r"variable W float32\[0\]: .*(not in the message|attached)"):
        receiver.get(pb.Tensor(**place), TensorSpec("W", (0,)))


def test_tensors_of_two_mebibytes_travel_inside_their_message_and_not_a_byte_more():
    sender = InlineSender()
    put(sender, np.zeros(MAX_INLINE_MESSAGE - 1, np.uint8), np.zeros(1, np.uint8))
    with pytest.raises(TooLarge, match="'W' there are 2097153: send it by Transfer"):
        put(sender, np.zeros(1, np.uint8))


def test_chunks_are_full_and_run_across_tensors():
    for sizes in ([CHUNK // 2 + 3] * 5, [2 * CHUNK], [40] * 100, [0], []):
        arrays, sender = [np.full(size, n, np.uint8) for n, size in enumerate(sizes)], StreamSender(few=0)
        put(sender, *arrays)
        data = b"".join(array.tobytes() for array in arrays)
        cut = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        assert [b"".join(one) for one in sender.chunks()] == cut


def test_small_tensors_travel_inside_their_message_as_long_as_they_are_few():
    sender = StreamSender()
    tensors = put(sender, *[np.full(INLINE_BELOW - 1, n, np.uint8) for n in range(MAX_INLINED // INLINE_BELOW + 10)])
    inside = [tensor for tensor in tensors if tensor.WhichOneof("place") == "inline"]
    assert [tensor.inline for tensor in inside] == [bytes([n]) * (INLINE_BELOW - 1) for n in range(len(inside))]
    assert MAX_INLINED - INLINE_BELOW < sum(len(tensor.inline) for tensor in inside) <= MAX_INLINED
    assert sender.nbytes == (INLINE_BELOW - 1) * (len(tensors) - len(inside)) > 0
    assert StreamReceiver().get(inside[1], TensorSpec("W", (INLINE_BELOW - 1,), "uint8")).tobytes() == inside[1].inline


def test_bytes_that_were_not_declared_and_memory_that_the_machine_does_not_have_are_refused():
    for size, *chunks in ((2, 8, 3), (2, 5, 6), (0, 3)):
        *earlier, last = [Incoming(pb.Frame(), None, bytes(nbytes)) for nbytes in chunks]
        receiver = StreamReceiver()
        receiver.get(pb.Tensor(streamed=True), TensorSpec("a", (size, 1)))
        receiver.allocate()
        for frame in earlier:
            receiver.feed(frame)
        with pytest.raises(Malformed, match="were declared, but 3 more bytes arrived"):
            receiver.feed(last)
    receiver = StreamReceiver()
    receiver.get(pb.Tensor(streamed=True), TensorSpec("huge", (1 << 60,), "uint8"))
    with pytest.raises(Malformed):
        receiver.feed(last)
    with pytest.raises(TooLarge, match=f"no memory for tensors of {1 << 60} bytes"):
        receiver.allocate()


def test_a_frame_that_is_not_the_message_or_the_chunk_that_must_follow_is_malformed():
    for got, frame in {"nothing": pb.Frame(), "an empty one": pb.Frame(chunk=b""), "pull": HEADER}.items():
        with pytest.raises(Malformed, match=f"a chunk of data must follow in a transfer, got {got}"):
            StreamReceiver().feed(incoming(frame.SerializeToString()))
    for got, frame in {"this one with nothing": pb.Frame(), "a chunk": pb.Frame(chunk=b"1")}.items():
        with pytest.raises(Malformed, match=f"begins with a message, .*{got}"):
            from_frame(incoming(frame.SerializeToString()), StreamReceiver())


# --- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(0,), (1,), (127,), (100, 28), (16383,), (16384, 1), (1 << 20, 3, 1 << 20)])
def test_frames_with_data_chunks_or_neither_are_plain_protobuf_and_elements_are_aligned_and_not_copied(sizes):
    generator = random.Random(SEED)
    data = [memoryview(generator.randbytes(size)) for size in sizes]
    whole = b"".join(data)
    take, region = pb.TakeRequest(sender=pb.Sender(worker="x" * 300)), pb.Region(segment=1, offset=64, nbytes=1 << 40)
    for header in (pb.Frame(), HEADER, pb.Frame(take=take, answer_region=region)):
        frame = with_data(header, data)
        assert frame.endswith(whole)
        assert (len(frame) - len(whole)) % ALIGNMENT == 0
        read = pb.Frame.FromString(frame)
        expected = pb.Frame(data=whole, padding=read.padding)
        expected.MergeFrom(header)
        assert read == expected
        apart = incoming(frame)
        assert apart == Incoming(header, whole)
        assert apart.data.obj is frame
        assert with_data(header, ()) == header.SerializeToString()
        assert incoming(header.SerializeToString()) == Incoming(header)
    frame = chunk(data)
    assert frame == pb.Frame(chunk=whole).SerializeToString()
    assert incoming(frame) == Incoming(pb.Frame(), None, whole)


def test_fields_may_come_in_any_order_and_the_last_of_two_counts_as_protobuf_has_it():
    first, second = (pb.Frame(data=data).SerializeToString() for data in (b"first", b"second"))
    frame = first + HEADER.SerializeToString() + pb.Frame(padding=b"123").SerializeToString()
    assert incoming(frame) == Incoming(HEADER, b"first", None)
    assert incoming(frame + second) == Incoming(HEADER, b"second", None)


NO_FRAMES = {
    "a number": b"\x08\x01",
    "cut data": b"\x7a\x05abc",
    "no length": b"\x7a",
    "no end of a tag": b"\xff" * 12,
    "exabytes": b"\x7a" + b"\xff" * 9 + b"\x01",
    "no message inside": b"\x0a\x02\xff\xff",
    "65 messages": b"\x0a\x00" * 65,  # a field costs far more time and memory here than its two bytes
    "65 paddings": b"\x92\x01\x00" * 65,
}


@pytest.mark.parametrize("frame", NO_FRAMES.values(), ids=NO_FRAMES)
def test_what_is_no_frame_or_has_very_many_fields_is_malformed(frame):
    with pytest.raises(Malformed, match=f"^{len(frame)} bytes that are not a paramserver.v1.Frame$"):
        incoming(frame)
    if len(frame) % 65 == 0:
        incoming(frame[: len(frame) // 65 * 64])


# --- shared memory ----------------------------------------------------------------------------------------------------


@pytest.fixture
def memory():
    return segment(4096)


def test_arrays_begin_at_cache_lines_and_segment_0_at_offset_0_is_a_place_too(memory):
    assert bytes_needed([0, 1, 65, 64]) == 256
    region = Region(3, memory)
    tensors = put(region, np.zeros(35, np.float32), np.zeros(0), np.zeros(1), np.zeros(4096 - 256, np.uint8))
    assert [one.shared for one in tensors] == [pb.Shared(segment=3, offset=at) for at in (0, 192, 192, 256)]
    with pytest.raises(TooLarge, match="no room for the 4 bytes of 'W'"):
        put(region, np.zeros(1, np.float32))
    array_at(memory, 0, TensorSpec("W", (2,)))[:] = [1, 2]
    assert SharedReceiver({0: memory}).get(pb.Tensor(shared=pb.Shared()), TensorSpec("W", (2,))).tolist() == [1, 2]


def test_a_place_that_is_outside_or_odd_is_malformed(memory):
    for offset, size in ((32, 1), (-64, 1), (4096, 1), (4032, 17), (0, 1025), (4160, 0), (1 << 62, 1), (64, 1 << 40)):
        tensor = pb.Tensor(shared=pb.Shared(segment=1, offset=offset))
        with pytest.raises(Malformed, match=r"variable W float32.* must be inside the 4,096 bytes .* multiple of 64"):
            SharedReceiver({1: memory}).get(tensor, TensorSpec("W", (size,)))
        with pytest.raises(Malformed, match=r"answer region: its .* bytes must be inside"):
            Region(1, memory, offset, 4 * size)
    assert Region(1, memory, 4032, 64).take(TensorSpec("W", (16,))).shape == (16,), "a place may end with its segment"


def test_what_a_worker_writes_afterwards_reaches_no_row_number_no_index_of_an_element_and_no_bool(memory):
    """They were checked, and update rules index with them; elements are viewed, wherever a message has them."""
    me, rows = Sender("w0", 1), IndexedSlices(np.ones((2, 3), np.float32), np.array([1, 4]), (5, 3))
    some = Packed("topk", (20,), (np.int32([3, 7]), np.float32([1, 2])))
    gradients = (Gradient("E", 0, rows), Gradient("W", 0, some), Gradient("f", 0, np.array([True])))
    region, arrived = Region(0, memory), []
    for message in (
        Push(sender=me, sequence=1, gradients=gradients),
        Pull(sender=me, choices=(Choice("E", np.array([0, 2])),)),
    ):
        frame = incoming(to_frame(message, region).SerializeToString())
        arrived.append(from_frame(frame, StreamReceiver(None, SharedReceiver({0: memory}))))
    memory[:] = 0xFF
    push, pull = arrived
    assert np.isnan(push.gradients[0].array.values).all()
    checked = push.gradients[0].array.indices, push.gradients[1].array.parts[0], pull.choices[0].rows
    assert [array.tolist() for array in checked] == [[1, 4], [3, 7], [0, 2]]
    assert push.gradients[2].array.tolist() == [True]


def test_tensors_that_overlap_do_not_multiply_memory(memory):
    """A small message would otherwise take any amount of memory; each message may be decoded two times."""
    for dtype, own in (("bool", False), ("int64", True)):
        spec, tensor = TensorSpec("W", (4096 // DTYPES[dtype].itemsize,), dtype), pb.Tensor(shared=pb.Shared())
        receiver = SharedReceiver({0: memory})
        assert all(receiver.get(tensor, spec, own=own).base is None for _ in range(2))
        with pytest.raises(Malformed, match=r"variable W .*: its place overlaps those of other tensors"):
            receiver.get(tensor, TensorSpec("W", (1,), dtype), own=own)
        assert receiver.get(tensor, TensorSpec("v", (2,))).nbytes == 8, "a view takes no memory"


def test_a_region_is_allocated_from_its_begin_to_its_end_and_its_arrays_are_not_streamed(memory):
    region = Region(5, memory, 128, 192)
    first, second = region.take(TensorSpec("a", (3,))), region.take(TensorSpec("b", (8,), "float64"))
    assert region.take(TensorSpec("c", (17,))) is None
    last = region.take(TensorSpec("d", (4, 4)))
    assert region.take(TensorSpec("e", (1,))) is None
    first[...], second[...], last[...] = 1, 2, 3
    assert np.frombuffer(memory, np.float32, 3, 128).tolist() == [1, 1, 1]
    assert not any(memory[320:])
    sender = StreamSender(region, few=0)
    there = put(sender, first, second.view(), last)
    assert [one.shared for one in there] == [pb.Shared(segment=5, offset=offset) for offset in (128, 192, 256)]
    other = array_at(segment(4096), 128, TensorSpec("a", (3,)))
    elsewhere = [np.zeros(3), last.copy(), last[:, 1:], last.T, last[1:], other]
    assert all(one.streamed for one in put(sender, *elsewhere))
    assert sender.nbytes == sum(array.nbytes for array in elsewhere)
