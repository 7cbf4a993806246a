"""Calls with tensors in shared memory, and every wrong description of it: the server serves on."""

import queue
from contextlib import closing

import grpc
import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.rpc.transfer_memory import MAX_SEGMENTS
from pswire import errors
from pswire.channel import error_from
from pswire.codec import from_frame, to_frame
from pswire.messages import Assign, Assignment, Declaration, Gradient, Outcome, Pull, Push, Register
from pswire.specs.consistency import Synchronous
from pswire.tensors.frames import incoming
from pswire.tensors.segments import DATA_OFFSET, Segment
from pswire.tensors.shared_memory import Region, SharedReceiver, aligned
from pswire.tensors.stream import StreamReceiver
from pswire.tensors.values import IndexedSlices, TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker import ops
from tests.server_client import frames_of
from tests.shared_folder import mapped_segments, needs_shared_memory, shared_folder

pytestmark = needs_shared_memory

SMALL = np.arange(12, dtype=np.float32).reshape(4, 3)
LARGE = np.arange(1 << 20, dtype=np.float32).reshape(1 << 10, 1 << 10)  # 4 MiB: looked at, and applied, in threads


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


@pytest.fixture(scope="module")
def server():
    with ServerThread(ServerConfig(lease=60.0)) as server:
        yield server


@pytest.fixture
def sender(client, name):
    sender = client.join(name[:100])
    client.register(sender, **{name: SMALL})
    return sender


class Stream:
    """An open Transfer and the segments that it offers, number 0 of which everything is put into."""

    def __init__(self, client):
        self._address, self._frames = client.address, queue.SimpleQueue()
        transfer = client.channel.stream_stream("/paramserver.v1.ParameterServer/Transfer", pb.Frame.SerializeToString)
        self._answers = transfer(iter(self._frames.get, None), timeout=30)
        self.memories = {}

    def send(self, *frames):
        for frame in frames:
            self._frames.put(frame)

    def next(self):
        """The next frame of an answer."""
        try:
            return incoming(next(self._answers))
        except grpc.RpcError as error:
            raise error_from(error, self._address) from None

    def offer(self, number, segment, **other):
        """The frame of an offer of a segment, as it is but for `other`."""
        known = {"name": segment.name, "nbytes": segment.nbytes, "token": segment.token}
        return pb.Frame(attach=pb.AttachRequest(segment=number, **known | other))

    def attach(self, number, segment, **other):
        """The reply to an offer."""
        self.send(self.offer(number, segment, **other))
        reply = self.next().header.attached
        if reply.attached:
            self.memories[number] = segment.memory
        return reply

    def header(self, message, region=None):
        """The frame of a message with all of its tensors in segment 0."""
        frame = to_frame(message, Region(0, self.memories[0]))
        if region is not None:
            frame.answer_region.CopyFrom(pb.Region(**dict(zip(("segment", "offset", "nbytes"), region, strict=True))))
        return frame

    def answer(self):
        """The next answer; its arrays are views of the segments."""
        frame = self.next()
        return from_frame(frame, StreamReceiver(frame.data, SharedReceiver(self.memories)))

    def call(self, message, region=None):
        self.send(self.header(message, region))
        return self.answer()

    def close(self):
        self._frames.put(None)
        self._answers.cancel()


@pytest.fixture
def segment():
    """16 MiB."""
    segment = Segment.create(16 << 20)
    yield segment
    segment.unlink()


@pytest.fixture
def stream(client, segment):
    """A stream that has attached it as segment 0."""
    with closing(Stream(client)) as stream:
        assert stream.attach(0, segment).attached
        yield stream


def offset_in(array, stream):
    """The offset of an array in segment 0; None if it is not there."""
    return Region(0, stream.memories[0], len(stream.memories[0]), 0).offset_of(array)


@pytest.mark.parametrize("value", [SMALL, LARGE], ids=["small", "large"])
def test_values_are_written_into_the_region_and_the_rest_comes_in_frames(value, client, sender, stream, name):
    client.register(sender, **{f"{name}/x": value})
    gradients, region = (Gradient(f"{name}/x", 0, value / 2),), (0, 8 << 20, value.nbytes + 10)
    pushed = stream.call(Push(sender, 1, gradients, pull=(f"{name}/x", name)), region)
    assert [offset_in(one.array, stream) for one in pushed.values] == [8 << 20, None]
    np.testing.assert_array_equal(pushed.values[0].array, value - value / 2, strict=True)
    np.testing.assert_array_equal(pushed.values[1].array, SMALL)
    again = stream.call(Push(sender, 2, gradients, pull=(name,)))
    assert offset_in(again.values[0].array, stream) is None, "without a region nothing is written"


@pytest.mark.parametrize("value", [SMALL, LARGE], ids=["small", "large"])
def test_what_is_in_shared_memory_may_change_when_the_call_was_answered(value, client, sender, stream, segment, name):
    """The server keeps nothing of an initial value, a gradient or an assigned value, but what it has computed of it."""
    declared = Declaration(TensorSpec.of(f"{name}/x", value), value, ps.Adam(0.5))
    rows = IndexedSlices(value[:2], np.array([3, 3]), value.shape)
    calls = [
        Register(sender, (declared,)),
        Push(sender, 1, (Gradient(f"{name}/x", 0, value + 1),)),
        Push(sender, 2, (Gradient(f"{name}/x", 1, rows),)),
        Assign(sender, 3, (Assignment(f"{name}/x", value),), add=True),
        Assign(sender, 4, (Assignment(f"{name}/x", value),)),
    ]
    for call in calls:
        stream.call(call, (0, 8 << 20, 5 << 20))
        before = client.value(sender, f"{name}/x")
        np.frombuffer(segment.memory, np.uint8)[DATA_OFFSET:] = 0xFF
        assert client.value(sender, f"{name}/x").tobytes() == before.tobytes()
    np.testing.assert_array_equal(before, value)


def test_a_segment_attached_during_a_held_push_replaces_its_segment_after_the_answer(connect, segment):
    other = Segment.create(1 << 20)
    np.frombuffer(other.memory, np.uint8)[DATA_OFFSET:] = 0xFF
    with ServerThread(ServerConfig(consistency=Synchronous(2))) as server:
        client = connect(server)
        senders = [client.join(worker) for worker in ("w0", "w1")]
        client.register(senders[0], w=SMALL)
        with closing(Stream(client)) as held:
            assert held.attach(0, segment).attached
            region = (0, 1 << 20, 4096)
            held.send(held.header(Push(senders[0], 1, (Gradient("w", 0, SMALL),), pull=("w",)), region))
            held.send(held.offer(0, other))
            while not client.status().workers[0].waiting_for:
                pass
            client.transfer(Push(senders[1], 1, (Gradient("w", 0, -SMALL - 2),)))
            np.testing.assert_array_equal(held.answer().values[0].array, SMALL + 1)
            assert held.next().header.attached.attached
            held.memories[0] = other.memory
            assigned = held.call(Assign(senders[0], 2, (Assignment("w", SMALL),)))
            assert assigned.outcome is Outcome.APPLIED
            np.testing.assert_array_equal(client.value(senders[0], "w"), SMALL)


def test_an_invalid_segment_is_refused_with_a_reason_and_the_stream_goes_on(sender, stream, segment, name):
    for number, other, reason in ((MAX_SEGMENTS, {}, "numbered from 0 to 63, not 64"), (0, {"token": b""}, "token")):
        reply = stream.attach(number, segment, **other)
        assert not reply.attached
        assert reason in reply.reason
    pulled = stream.call(Pull(sender, (name,)), (0, DATA_OFFSET, 4096))
    np.testing.assert_array_equal(pulled.values[0].array, SMALL)
    assert offset_in(pulled.values[0].array, stream) == DATA_OFFSET, "the segment attached before still is"
    header, *_ = frames_of(Push(sender, 1, (Gradient(name, 0, SMALL),)))
    stream.send(header, stream.offer(1, segment))
    with pytest.raises(errors.Malformed, match="a chunk of data must follow in a transfer, got attach"):
        stream.next()


INDEX_DTYPES = {
    "segment that was not attached": (7, DATA_OFFSET, "segment 7.* was not attached on this stream"),
    "misaligned": (0, DATA_OFFSET + 4, "begin at a multiple of 64"),
    "far away": (0, 1 << 62, "must be inside"),
}


@pytest.mark.parametrize("kind", ["gradient", "region"])
@pytest.mark.parametrize(("number", "offset", "reason"), INDEX_DTYPES.values(), ids=list(INDEX_DTYPES))
def test_an_invalid_place_is_malformed_and_nothing_of_its_push_is_applied(
    kind, number, offset, reason, client, sender, stream, name
):
    client.register(sender, **{f"{name}/x": SMALL})
    push = Push(sender, 1, (Gradient(name, 0, SMALL), Gradient(f"{name}/x", 0, SMALL)), pull=(name,))
    frame = stream.header(push, (number, offset, 4096) if kind == "region" else None)
    if kind == "gradient":
        shared = frame.push.gradients[1].tensor.shared
        shared.segment, shared.offset = number, offset
    stream.send(frame)
    with pytest.raises(errors.Malformed, match=reason):
        stream.next()
    assert client.value(sender, name).tobytes() == client.value(sender, f"{name}/x").tobytes() == SMALL.tobytes()
    assert client.transfer(push).outcome is Outcome.APPLIED


BAD_PUSHES = {
    "negative row": (SMALL, [0, -1], errors.InvalidMessage, r"indices must be in 0 \.\.\. 3"),
    "one row too many": (SMALL, [0, 4], errors.InvalidMessage, r"indices must be in 0 \.\.\. 3"),
    "NaN": (np.where(SMALL > 10, np.float32(np.nan), SMALL), None, errors.NotFinite, "has 1 of"),
    "infinite, in a thread": (np.where(LARGE > 1048574, np.float32(np.inf), LARGE), None, errors.NotFinite, "has 1 of"),
}


@pytest.mark.parametrize(("array", "rows", "error", "match"), BAD_PUSHES.values(), ids=list(BAD_PUSHES))
def test_elements_in_shared_memory_are_checked_too(array, rows, error, match, client, sender, stream, name):
    client.register(sender, **{f"{name}/x": np.zeros_like(array)})
    gradient = array if rows is None else IndexedSlices(array[:2], np.array(rows), array.shape, check_range=False)
    with pytest.raises(error, match=match):
        stream.call(Push(sender, 1, (Gradient(name, 0, SMALL), Gradient(f"{name}/x", 0, gradient))))
    assert client.value(sender, name).tobytes() == SMALL.tobytes()
    assert not client.value(sender, f"{name}/x").any()


@pytest.mark.parametrize("value", [SMALL, LARGE], ids=["small", "large"])
def test_tensors_and_a_region_that_overlap_harm_only_their_own_worker(value, client, sender, stream, name):
    """A worker may write there at any moment, so all that can be promised is that the others are served."""
    names = tuple(f"{name}/{letter}" for letter in "abc")
    client.register(sender, **dict.fromkeys(names, value))
    push = Push(sender, 1, tuple(Gradient(one, 0, value / 2) for one in names[:2]), pull=names)
    frame = stream.header(push, (0, DATA_OFFSET + 64, 2 * aligned(value.nbytes)))
    for gradient in frame.push.gradients:
        gradient.tensor.shared.offset = DATA_OFFSET
    stream.send(frame)
    pushed = stream.answer()
    assert pushed.outcome is Outcome.APPLIED
    assert [one.version for one in pushed.values] == [1, 1, 0]
    np.testing.assert_array_equal(client.value(sender, names[2]), value)
    np.testing.assert_array_equal(client.value(sender, name), SMALL)


@pytest.mark.parametrize(("allowed", "expected"), [(True, "shared memory"), (False, "gRPC")])
def test_a_session_works_and_its_tensor_transport_is_in_the_status(connect, folder, segment, allowed, expected):
    with ServerThread(ServerConfig(shared_memory=allowed)) as server, ps.collection():
        client = connect(server)
        with closing(Stream(client)) as stream:
            reply = stream.attach(0, segment)
            assert (reply.attached, "--no-shared-memory" in reply.reason) == (allowed, not allowed)
        W = ps.Variable(LARGE, name="W")
        with ps.session(server.address, "w0"):
            ps.GradientDescent(0.5).minimize(ops.sum(W * 2.0))
            np.testing.assert_array_equal(W.value, LARGE - 1)
            assert (len(mapped_segments(folder)) > 1) == allowed, "that of the fixture is there anyway"
            while client.status().workers[0].tensor_transport != expected:
                pass


def test_rows_in_shared_memory_count_as_traffic_too(connect, segment):
    rows = IndexedSlices(np.zeros((150_000, 3), np.float32), np.zeros(150_000, np.int64), SMALL.shape)
    with ServerThread(ServerConfig(memory_limit=4 << 20)) as server:
        client = connect(server)
        sender = client.join()
        client.register(sender, w=SMALL)
        with closing(Stream(client)) as stream:
            assert stream.attach(0, segment).attached
            with pytest.raises(errors.TooLarge, match=r"3,000,000 bytes.* room for 2,097,152 at a time"):
                stream.call(Push(sender, 1, (Gradient("w", 0, rows),)))
        assert client.status().variables[0].version == 0
