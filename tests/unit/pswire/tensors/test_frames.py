"""Frames that are written and read by hand are the same bytes as those of protobuf."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pswire.errors import Malformed
from pswire.tensors import frames
from pswire.v1 import paramserver_pb2 as pb

SEED = 20261121
HEADER = pb.Frame(pull=pb.PullRequest(sender=pb.Sender(worker="w", incarnation=3), names=["W", "b"]))
REGION = pb.Region(segment=1, offset=64, nbytes=1 << 40)
HEADERS = [pb.Frame(), HEADER, pb.Frame(attach=pb.AttachRequest(name="x" * 300), answer_region=REGION)]


@pytest.mark.parametrize("sizes", [(0,), (1,), (127,), (100, 28), (16383,), (16384, 1), (1 << 20, 3, 1 << 20)])
def test_frames_with_data_chunks_or_neither_are_plain_protobuf_and_elements_are_aligned_and_not_copied(sizes):
    generator = random.Random(SEED)
    data = [memoryview(generator.randbytes(size)) for size in sizes]
    whole = b"".join(data)
    for header in HEADERS:
        frame = frames.with_data(header, data)
        assert frame.endswith(whole)
        assert (len(frame) - len(whole)) % frames.ALIGNMENT == 0
        read = pb.Frame.FromString(frame)
        expected = pb.Frame(data=whole, padding=read.padding)
        expected.MergeFrom(header)
        assert read == expected
        apart = frames.incoming(frame)
        assert (apart.header, apart.data, apart.chunk) == (header, whole, None)
        assert apart.data.obj is frame
        assert frames.with_data(header, ()) == header.SerializeToString()
        assert frames.incoming(header.SerializeToString()) == frames.Incoming(header)
    frame = frames.chunk(data)
    assert frame == pb.Frame(chunk=whole).SerializeToString()
    assert frames.incoming(frame) == frames.Incoming(pb.Frame(), None, whole)


def test_fields_may_come_in_any_order_and_the_last_of_two_counts_as_protobuf_has_it():
    first, second = (pb.Frame(data=data).SerializeToString() for data in (b"first", b"second"))
    frame = first + HEADER.SerializeToString() + pb.Frame(padding=b"123").SerializeToString()
    assert frames.incoming(frame) == frames.Incoming(HEADER, b"first", None)
    assert frames.incoming(frame + second) == frames.Incoming(HEADER, b"second", None)


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
        frames.incoming(frame)
    if len(frame) % 65 == 0:
        frames.incoming(frame[: len(frame) // 65 * 64])


@given(data=st.binary(max_size=100))
@settings(derandomize=True, deadline=None)
def test_what_protobuf_refuses_is_refused_and_what_both_take_is_read_alike(data):
    try:
        apart = frames.incoming(data)
    except Malformed:
        return
    read = pb.Frame.FromString(data)
    assert (apart.data or b"", apart.chunk or b"") in {(read.data, read.chunk), (read.data, apart.chunk or b"")}
