"""Calls with tensors in shared memory, and every wrong description of it: the server serves on."""

from contextlib import closing

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.codec import to_frame
from pswire.tensors.segments import DATA_OFFSET, Segment
from pswire.tensors.shared_memory import Region
from pswire.tensors.values import IndexedSlices, TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker import ops
from tests.server_client import Stream, frames_of
from tests.shared_folder import mapped_segments, needs_shared_memory, shared_folder

pytestmark = needs_shared_memory

SMALL = np.arange(12, dtype=np.float32).reshape(4, 3)
LARGE = np.arange(1 << 20, dtype=np.float32).reshape(1 << 10, 1 << 10)  # 4 MiB: inspected, and applied, in threads
small_and_large = pytest.mark.parametrize("value", [SMALL, LARGE], ids=["small", "large"])


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


class SharedStream(Stream):
    """An open Transfer that has attached a segment of 16 MiB as number 0, which everything is put into."""

    def __init__(self, client):
        super().__init__(client)
        self.segment = Segment.create(16 << 20)
        assert self.attach(0, self.segment).attached

    def close(self):
        super().close()
        self.segment.unlink()

    def offer(self, number, segment, **other):
        """The frame of an offer of a segment, as it is but for `other`."""
        known = {"name": segment.name, "nbytes": segment.nbytes, "token": segment.token}
        return pb.Frame(attach=pb.AttachRequest(segment=number, **known | other))

    def attach(self, number, segment, **other):
        """The reply to an offer."""
        self.send(self.offer(number, segment, **other))
        reply = self.frame().header.attached
        if reply.attached:
            self.memories[number] = segment.memory
        return reply

    def header(self, message, region=None):
        """The frame of a message with all of its tensors in segment 0, and this region for its answer."""
        frame = to_frame(message, Region(0, self.memories[0]))
        if region is not None:
            frame.answer_region.CopyFrom(pb.Region(**dict(zip(("segment", "offset", "nbytes"), region, strict=True))))
        return frame

    def call(self, message, region=None):
        self.send(self.header(message, region))
        return self.answer()

    def offset_of(self, array):
        """The offset of an array in segment 0; None if it is not there."""
        return Region(0, self.memories[0], len(self.memories[0]), 0).offset_of(array)


@pytest.fixture
def stream(client):
    with closing(SharedStream(client)) as stream:
        yield stream


@pytest.fixture
def sender(client, name):
    sender = client.join(name[:100])
    client.register(sender, **{name: SMALL})
    return sender


def push(sender, name, *arrays, sequence=1, pull=()):
    """Gradients of `NAME` and `NAME/x`, or of `NAME/x` alone."""
    names = (name, f"{name}/x")[-len(arrays) :]
    gradients = tuple(ms.Gradient(one, 0, array) for one, array in zip(names, arrays, strict=True))
    return ms.Push(sender, sequence, gradients, pull=pull)


@small_and_large
def test_values_are_written_into_the_region_and_the_rest_comes_in_frames(value, client, sender, stream, name):
    client.register(sender, **{f"{name}/x": value})
    region = (0, 8 << 20, value.nbytes + 10)
    pushed = stream.call(push(sender, name, value / 2, pull=(f"{name}/x", name)), region)
    assert [stream.offset_of(one.array) for one in pushed.values] == [8 << 20, None]
    np.testing.assert_array_equal(pushed.values[0].array, value - value / 2, strict=True)
    np.testing.assert_array_equal(pushed.values[1].array, SMALL)
    again = stream.call(push(sender, name, value / 2, sequence=2, pull=(name,)))
    assert stream.offset_of(again.values[0].array) is None, "without a region nothing is written"
    other = Segment.create(16 << 20)
    assert stream.attach(0, other).attached, "it replaces the segment of that number"
    other.unlink()
    pushed = stream.call(push(sender, name, value / 4, sequence=3, pull=(f"{name}/x",)), region)
    np.testing.assert_array_equal(pushed.values[0].array, value - value / 2 - value / 2 - value / 4)


@small_and_large
def test_what_is_in_shared_memory_may_change_when_the_call_was_answered(value, client, sender, stream, name):
    """The server keeps nothing of an initial value, a gradient or an assigned value, but what it has computed of it."""
    x, rows = f"{name}/x", IndexedSlices(value[:2], np.array([3, 3]), value.shape)
    for call in [
        ms.Register(sender, (ms.Declaration(TensorSpec.of(x, value), value, ps.Adam(0.5)),)),
        push(sender, name, value + 1),
        push(sender, name, rows, sequence=2),
        ms.Assign(sender, 3, (ms.Assignment(x, value),), add=True),
        ms.Assign(sender, 4, (ms.Assignment(x, value),)),
    ]:
        stream.call(call, (0, 8 << 20, 5 << 20))
        before = client.value(sender, x)
        np.frombuffer(stream.segment.memory, np.uint8)[DATA_OFFSET:] = 0xFF
        assert client.value(sender, x).tobytes() == before.tobytes()
    np.testing.assert_array_equal(before, value)


def test_an_invalid_segment_is_refused_with_a_reason_and_the_stream_goes_on(sender, stream, name):
    segment, numbers = stream.segment, "segments are numbered from 0 to 63, not"
    for number, other, reason in [
        (0, {"token": bytes(16)}, "the file does not begin with the token: it is a different file"),
        (0, {"nbytes": 1}, f"the file has {segment.nbytes:,} bytes, and 1 were announced"),
        (64, {}, f"{numbers} 64"),
        (-1, {}, f"{numbers} -1"),
    ]:
        assert stream.attach(number, segment, **other) == pb.AttachReply(reason=reason)
    pulled = stream.call(ms.Pull(sender, (name,)), (0, DATA_OFFSET, 4096))
    np.testing.assert_array_equal(pulled.values[0].array, SMALL)
    assert stream.offset_of(pulled.values[0].array) == DATA_OFFSET, "the segment attached before still is"
    assert stream.attach(63, segment).attached
    header, *_ = frames_of(ms.Push(sender, 1, (ms.Gradient(name, 0, SMALL),)))
    stream.send(header, stream.offer(63, segment))
    with pytest.raises(errors.Malformed, match="a chunk of data must follow in a transfer, got attach"):
        stream.frame()


PLACES = {
    "segment that was not attached": (7, DATA_OFFSET, "segment 7.* was not attached on this stream"),
    "no segment": (-1, DATA_OFFSET, "was not attached on this stream"),
    "misaligned": (0, DATA_OFFSET + 4, "begin at a multiple of 64"),
    "far away": (0, 1 << 62, "must be inside"),
}


@pytest.mark.parametrize("kind", ["gradient", "region"])
@pytest.mark.parametrize(("number", "offset", "reason"), PLACES.values(), ids=PLACES)
def test_an_invalid_place_is_malformed_and_nothing_of_its_push_is_applied(
    kind, number, offset, reason, client, sender, stream, name
):
    client.register(sender, **{f"{name}/x": SMALL})
    message = push(sender, name, SMALL, SMALL, pull=(name,))
    frame = stream.header(message, (number, offset, 4096) if kind == "region" else None)
    if kind == "gradient":
        shared = frame.push.gradients[1].tensor.shared
        shared.segment, shared.offset = number, offset
    stream.send(frame)
    with pytest.raises(errors.Malformed, match=reason):
        stream.frame()
    assert client.value(sender, name).tobytes() == client.value(sender, f"{name}/x").tobytes() == SMALL.tobytes()
    assert client.transfer(message).outcome is ms.Outcome.APPLIED


def test_a_session_works_where_no_memory_is_shared_and_its_tensor_transport_is_in_the_status(connect, folder, caplog):
    with ServerThread(ServerConfig(shared_memory=False)) as server, ps.collection():
        client, W = connect(server), ps.Variable(LARGE, name="W")
        with ps.session(server.address, "w0"):
            ps.GradientDescent(0.5).minimize(ops.sum(W * 2.0))
            np.testing.assert_array_equal(W.value, LARGE - 1)
            assert mapped_segments(folder) == []
            while client.status().workers[0].tensor_transport != "gRPC":
                pass
    assert "so tensors go by gRPC: the server was started with --no-shared-memory" in caplog.text


def test_rows_in_shared_memory_count_as_traffic_too(connect):
    rows = IndexedSlices(np.zeros((150_000, 3), np.float32), np.zeros(150_000, np.int64), SMALL.shape)
    with ServerThread(ServerConfig(memory_limit=4 << 20)) as server:
        client = connect(server)
        sender = client.join()
        client.register(sender, w=SMALL)
        refused = pytest.raises(errors.TooLarge, match=r"3,000,000 bytes.* room for 2,097,152 at a time")
        with closing(SharedStream(client)) as stream, refused:
            stream.call(ms.Push(sender, 1, (ms.Gradient("w", 0, rows),)))
        assert client.status().variables[0].version == 0
