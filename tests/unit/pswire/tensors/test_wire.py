"""Large messages are parsed in slices, each of whole fields, and counted before protobuf makes anything of them."""

import pytest
from google.protobuf.message import Message

from pswire.codec import parse
from pswire.errors import Malformed
from pswire.limits import MAX_ENTRIES
from pswire.tensors import wire
from pswire.tensors.frame import split
from pswire.tensors.wire import MAX_FIELD_BYTES, MAX_OTHERS, SLICE
from pswire.v1 import paramserver_pb2 as pb

NAMES = [f"layers/block-{number}/kernel" for number in range(20_000)]
PULL = pb.PullRequest(
    sender=pb.Sender(worker="w0", incarnation=3),
    names=NAMES,
    known_versions=range(1 << 20, (1 << 20) + len(NAMES)),
    choices=[pb.Choice(name="E", rows=pb.Tensor(name="E", dtype="int64", shape=[70_000], inline=bytes(560_000)))] * 3,
    encoding="bfloat16",
    of_cut=1 << 40,
)


class Recorded:
    """A message that notes the bytes of each slice."""

    def __init__(self, proto):
        self.proto, self.slices, self.DESCRIPTOR = proto, [], proto.DESCRIPTOR

    def MergeFromString(self, data):  # noqa: N802 - protobuf's name
        self.slices.append(bytes(data))
        self.proto.MergeFromString(data)


def test_a_large_message_is_parsed_in_slices_that_are_little_more_than_a_field_long():
    data, recorded = PULL.SerializeToString(), Recorded(pb.PullRequest())
    wire.parse(recorded, data, {"names": MAX_ENTRIES})
    assert recorded.proto == PULL
    assert b"".join(recorded.slices) == data
    assert len(recorded.slices) >= 4
    assert max(map(len, recorded.slices)) < SLICE + 561_000


def test_the_message_of_a_large_frame_is_parsed_in_the_same_way():
    frame = pb.Frame(pull=PULL, answer_region=pb.Region(segment=2, offset=64, nbytes=1 << 20), data=b"elements")
    parts, parsed = split(frame.SerializeToString()), []

    def record(proto: Message, data: bytes) -> None:
        parsed.append(type(proto).__name__)
        parse(proto, data)

    incoming = parts.parse(record)
    assert sorted(parsed) == ["Frame", "PullRequest"]
    assert parts.head_bytes > SLICE
    assert incoming.data == b"elements"
    frame.ClearField("data")
    assert incoming.header == frame


def test_small_messages_are_parsed_at_once():
    small, recorded = pb.PullRequest(names=NAMES[:10]), Recorded(pb.PullRequest())
    wire.parse(recorded, small.SerializeToString())
    assert recorded.proto == small
    assert len(recorded.slices) == 1


TOO_MANY = (MAX_ENTRIES + 1) * b"\x12\x08aaaaaaaa"
LARGE = SLICE * b"\x12\x00"
BAD = {
    "too many names": (TOO_MANY, "PullRequest.names has 32,768 entries at most, and these 327,690 bytes have more"),
    "empty names": (LARGE, "PullRequest.names has 32,768 entries at most, and these 524,288 bytes have more"),
    "unknown numbers": (SLICE * b"\x78\x00", rf"PullRequest\.field 15 has {MAX_OTHERS:,} entries at most"),
    "unknown fields": (SLICE * b"\xfa\x7f\x00", rf"PullRequest\.field 2047 has {MAX_OTHERS:,} entries at most"),
    "one field of megabytes": (
        pb.PullRequest(encoding=MAX_FIELD_BYTES * "x").SerializeToString(),
        "PullRequest.encoding has 2,162,688 bytes at most, got 2,162,693",
    ),
    "a group": (b"\x0b" + LARGE, "bytes that are not a paramserver.v1.PullRequest"),
    "a field that is cut": (b"\x12\x80\x80\x40" + bytes(SLICE), "bytes that are not a paramserver.v1.PullRequest"),
    "a tag that is cut": (bytes([0x12, 8, *bytes(8)]) * (SLICE // 10) + bytes(9) + b"\xff", "bytes that are not a"),
}


@pytest.mark.parametrize("case", BAD)
def test_large_bytes_that_are_no_message_are_malformed_before_protobuf_sees_them(case):
    data, reason = BAD[case]
    assert len(data) > SLICE
    with pytest.raises(Malformed, match=reason):
        parse(pb.PullRequest(), data)
