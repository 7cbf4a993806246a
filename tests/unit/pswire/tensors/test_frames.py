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
REGION = pb.Frame(
    take=pb.TakeRequest(reports_received=5), answer_region=pb.Region(segment=1, offset=64, nbytes=1 << 40)
)
HEADERS = [pb.Frame(), HEADER, REGION, pb.Frame(attach=pb.AttachRequest(name="x" * 300, token=bytes(16)))]


def bytes_of(*sizes):
    generator = random.Random(SEED)
    return [memoryview(generator.randbytes(size)) for size in sizes]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.WhichOneof("piece") or "nothing")
@pytest.mark.parametrize("sizes", [(0,), (1,), (127,), (128,), (100, 28), (16383,), (16384, 1), (1 << 20, 3, 1 << 20)])
def test_a_frame_with_data_is_plain_protobuf_and_its_data_is_aligned_and_not_copied(header, sizes):
    data = bytes_of(*sizes)
    frame = frames.with_data(header, data)
    read = pb.Frame.FromString(frame)
    assert read.data == b"".join(data)
    assert frame.endswith(read.data)
    assert (len(frame) - len(read.data)) % frames.ALIGNMENT == 0
    apart = frames.incoming(frame)
    assert (apart.header, apart.data, apart.chunk) == (header, read.data, None)
    assert apart.data.obj is frame
    read.ClearField("data")
    read.ClearField("padding")
    assert read == header


def test_a_frame_without_data_is_its_header():
    assert frames.with_data(HEADER, ()) == HEADER.SerializeToString()
    assert frames.incoming(HEADER.SerializeToString()) == frames.Incoming(HEADER)


@pytest.mark.parametrize("sizes", [(1,), (200, 100), (1 << 20,)])
def test_a_chunk_is_what_protobuf_would_have_written(sizes):
    pieces = bytes_of(*sizes)
    frame = frames.chunk(pieces)
    assert frame == pb.Frame(chunk=b"".join(pieces)).SerializeToString()
    apart = frames.incoming(frame)
    assert (apart.header, apart.data, apart.chunk) == (pb.Frame(), None, b"".join(pieces))


def test_fields_may_come_in_any_order_and_the_last_of_two_counts_as_protobuf_has_it():
    data = pb.Frame(data=b"first").SerializeToString() + HEADER.SerializeToString()
    again = data + pb.Frame(padding=b"123").SerializeToString() + pb.Frame(data=b"second").SerializeToString()
    for frame in (data, again):
        apart, read = frames.incoming(frame), pb.Frame.FromString(frame)
        assert apart.header == HEADER
        assert apart.data == read.data


@pytest.mark.parametrize(
    "frame",
    [b"\x08\x01", b"\x7a\x05abc", b"\x7a", b"\xff" * 12, b"\x7a" + b"\xff" * 9 + b"\x01", b"\x0a\x02\xff\xff"],
    ids=["a number", "cut data", "no length", "no end of a tag", "exabytes", "no message inside"],
)
def test_what_is_no_frame_is_malformed(frame):
    with pytest.raises(Malformed, match=f"^{len(frame)} bytes that are not a paramserver.v1.Frame$"):
        frames.incoming(frame)


@pytest.mark.parametrize("field", [b"\x0a\x00", b"\x92\x01\x00", b"\x7a\x00"])
def test_a_frame_of_very_many_fields_is_malformed_since_each_costs_far_more_here_than_on_its_way(field):
    frames.incoming(field * 64)
    with pytest.raises(Malformed, match=r"^[0-9]+ bytes that are not a paramserver\.v1\.Frame$"):
        frames.incoming(field * 65)


@given(data=st.binary(max_size=100))
@settings(derandomize=True, deadline=None)
def test_what_protobuf_refuses_is_refused_and_what_both_take_is_read_alike(data):
    try:
        apart = frames.incoming(data)
    except Malformed:
        return
    read = pb.Frame.FromString(data)
    assert (apart.data or b"", apart.chunk or b"") in {(read.data, read.chunk), (read.data, apart.chunk or b"")}
