"""Calls to a server, unary, on streams and in shared memory: what they do, every way to break one, and the limits."""

import tracemalloc
from contextlib import closing

import numpy as np
import pytest

import psserver.runtime.clock
import psworker as ps
from psserver.config import ServerConfig
from psserver.core.shard import Shard
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.codec import encode, to_frame
from pswire.tensors.segments import DATA_OFFSET, Segment
from pswire.tensors.shared_memory import Region
from pswire.tensors.transport import CHUNK, InlineSender
from pswire.tensors.values import IndexedSlices, TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker import ops
from tests.server_client import Stream, frame_of, frames_of
from tests.shared_folder import mapped_segments, needs_shared_memory, shared_folder

SMALL = np.arange(6, dtype=np.float32).reshape(2, 3)
SHAPE = (3, CHUNK // 4)  # float32: three chunks
LARGE = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)


@pytest.fixture
def sender(client, name):
    """A worker that has joined and registered a variable by its test's name, LARGE, and `NAME/s`, SMALL."""
    sender = client.join(name[:100])
    client.register(sender, **{name: LARGE, f"{name}/s": SMALL})
    return sender


@pytest.fixture
def small(name):
    return f"{name}/s"


@pytest.fixture
def frames(sender, name):
    """The header and three chunks of a push."""
    frames = frames_of(push(sender, name, LARGE, pull=(name,)))
    assert [len(frame.chunk) for frame in frames] == [0, CHUNK, CHUNK, CHUNK]
    return frames


def push(sender, name, array, sequence=1, **fields):
    return ms.Push(sender, sequence, (ms.Gradient(name, 0, array),), **fields)


def declared(name, array):
    return ms.Declaration(TensorSpec.of(name, array), array)


def as_proto(message):
    return encode(message, InlineSender())


def edited(message, edit):
    proto = as_proto(message)
    edit(proto)
    return proto


# --- unary calls ------------------------------------------------------------------------------------------------------

BAD = {
    "unknown variable": (lambda s, v: push(s, v, SMALL, pull=("v",)), errors.UnknownVariable, "no variable 'v'"),
    "NaN": (lambda s, v: push(s, v, SMALL * np.nan), errors.NotFinite, "has 6 of 6 elements"),
    "the same gradient twice": (
        lambda s, v: edited(push(s, v, SMALL), lambda proto: proto.gradients.append(proto.gradients[0])),
        errors.Malformed,
        "is in the message more than once",
    ),
    "too few bytes inline": (
        lambda s, v: edited(push(s, v, SMALL), lambda proto: setattr(proto.gradients[0].tensor, "inline", b"123")),
        errors.Malformed,
        r"float32\[2, 3\].*24 bytes.* 3",
    ),
}


@pytest.mark.parametrize(("make", "kind", "text"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_with_its_error_and_the_server_serves_on(make, kind, text, client, sender, small):
    bad = make(sender, small)
    method, proto = ("Push", bad) if hasattr(bad, "DESCRIPTOR") else (type(bad).__name__, as_proto(bad))
    with pytest.raises(errors.ParamServerError, match=text) as caught:
        client.send(method, proto)
    assert type(caught.value) is kind
    np.testing.assert_array_equal(client.value(sender, small), SMALL)
    assert client.unary(push(sender, small, SMALL)).outcome is ms.Outcome.APPLIED


@pytest.mark.parametrize("method", ["Join", "Push"])
def test_garbage_is_malformed_whatever_it_claims_to_be(method, client):
    with pytest.raises(errors.Malformed, match=rf"4 bytes that are not a paramserver.v1.{method}Request"):
        client.send_bytes(method, b"\xff\xfe\xfd\xfc")
    with pytest.raises(errors.ConfigurationError, match="not a parameter server, or runs a different version"):
        client.send_bytes("Guess", b"")


def test_messages_too_large_for_one_call_are_refused_before_anything_is_done(client, sender, name, small):
    with pytest.raises(errors.TooLarge, match=r"3,145,728 bytes of values.*use Transfer"):
        client.unary(push(sender, small, SMALL, pull=(name,)))
    beyond_grpc = edited(
        push(sender, small, SMALL), lambda proto: setattr(proto.gradients[0].tensor, "inline", bytes(5 << 20))
    )
    with pytest.raises(errors.TooLarge):
        client.send_bytes("Push", beyond_grpc.SerializeToString())
    np.testing.assert_array_equal(client.value(sender, small), SMALL)
    assert client.transfer(push(sender, small, SMALL, pull=(name,))).outcome is ms.Outcome.APPLIED


def test_a_failure_of_the_server_itself_is_logged_and_answered_with_a_reference(
    client, sender, small, monkeypatch, caplog
):
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "answer_bytes", lambda self, message, **_: 1 // 0)
        with pytest.raises(errors.InternalError, match="the server failed on this message") as caught:
            client.unary(ms.Pull(sender, (small,)))
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info[0] is ZeroDivisionError
    assert record.args[0] in str(caught.value)
    assert "ZeroDivisionError" not in str(caught.value)
    caplog.clear()
    assert client.unary(push(sender, small, SMALL)).outcome is ms.Outcome.APPLIED


# --- transfers --------------------------------------------------------------------------------------------------------

ANSWER = pb.Frame(pushed=pb.PushReply(outcome=pb.OUTCOME_APPLIED))
BROKEN = {
    "without the last chunk": (lambda f: f[:-1], "ended before the data that its header announced: not applied"),
    "two headers": (lambda f: [f[0], *f], "a chunk of data must follow in a transfer, got push"),
    "chunks first": (lambda f: f[1:], "begins with"),
    "an answer first": (lambda f: [ANSWER, *f[1:]], "Pushed is an answer"),
}


@pytest.mark.parametrize(("damage", "complaint"), BROKEN.values(), ids=BROKEN)
def test_a_broken_transfer_is_malformed_and_nothing_of_it_applied(damage, complaint, client, sender, frames, name):
    with pytest.raises(errors.ParamServerError, match=complaint) as caught:
        list(client.send_frames(damage(frames)))
    assert type(caught.value) is errors.Malformed
    assert client.value(sender, name).tobytes() == LARGE.tobytes()
    (answer,) = client.send_frames(frames)
    assert answer.outcome is ms.Outcome.APPLIED


def test_a_stream_takes_any_number_of_calls_until_one_fails_and_those_before_it_stay(client, sender, frames, name):
    assert list(client.send_frames([])) == []
    two = np.full(2, 2.0)
    assign = frames_of(ms.Assign(sender, 2, (ms.Assignment(name, LARGE),)))
    calls = [
        [frame_of(ms.Register(sender, (declared(f"{name}/two", two),)))],
        frames,
        [frame_of(ms.Pull(sender, (f"{name}/two",)))],
        assign,
        [frame_of(ms.Pull(sender, (name, f"{name}/two")))],
        [frame_of(ms.Pull(sender, ("nowhere",)))],
        frames_of(push(sender, name, LARGE, sequence=3)),
    ]
    answers = client.send_frames(frame for call in calls for frame in call)
    found = [value.array for _ in range(5) for value in getattr(next(answers), "values", ())]
    for array, expected in zip(found, (two, np.zeros(SHAPE), two, LARGE, two), strict=True):
        np.testing.assert_array_equal(array, expected)
    with pytest.raises(errors.UnknownVariable):
        next(answers)
    np.testing.assert_array_equal(client.value(sender, name), LARGE)


def test_between_two_calls_a_stream_may_rest_for_longer_than_a_lease(connect, monkeypatch):
    monkeypatch.setattr(psserver.runtime.clock, "TICK", 0.01)
    with ServerThread(ServerConfig(lease=0.3)) as server:
        client = connect(server)
        stream, pull = Stream(client), frames_of(ms.Pull(client.join(), ()))
        stream.send(*pull)
        assert stream.answer().global_step == 0
        while client.status().workers[0].state == "live":
            pass
        stream.send(*pull, None)
        with pytest.raises(errors.NotJoined):
            stream.answer()


def test_announced_terabytes_are_refused_at_once(client, sender, name):
    register = frames_of(ms.Register(sender, (declared(f"{name}/huge", LARGE),)))
    register[0].register.declarations[0].tensor.shape[:] = [1 << 20, 1 << 20]
    rows = frames_of(push(sender, name, IndexedSlices(LARGE, np.zeros(3, np.int64), SHAPE)))
    for described in (rows[0].push.gradients[0].tensor, rows[0].push.gradients[0].indices):
        described.shape[0] = 1 << 34  # any number of such rows is right for the variable
    tracemalloc.start()
    try:
        for frames, reason in ((register, "use more shards, or raise --memory-limit"), (rows, "room for")):
            with pytest.raises(errors.TooLarge, match=reason):
                list(client.send_frames(frames))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_transfer_that_is_cancelled_midway_leaves_the_variable_as_it_was(client, sender, frames, name):
    stream = Stream(client)
    stream.send(*frames[:3])
    stream.flush()
    stream.close()
    assert client.value(sender, name).tobytes() == LARGE.tobytes()
    (answer,) = client.send_frames(frames)
    assert answer.outcome is ms.Outcome.APPLIED


def test_a_transfer_that_stalls_is_aborted_after_a_lease(connect):
    with ServerThread(ServerConfig(lease=0.2)) as server:
        client = connect(server)
        sender = client.join()
        client.register(sender, w=LARGE)
        stream = Stream(client)
        stream.send(frames_of(push(sender, "w", LARGE))[0])
        with pytest.raises(errors.TimedOut, match=r"^the transfer stalled for 0\.2 s and was aborted$"):
            stream.answer()
        stream.close()
        assert client.status().variables[0].version == 0


def test_a_transfer_above_the_traffic_limit_is_refused_with_the_figures(connect):
    with ServerThread(ServerConfig(memory_limit=2 * LARGE.nbytes)) as server:
        client = connect(server)
        sender, half = client.join(), LARGE[:1]
        client.register(sender, w=half)
        with pytest.raises(errors.TooLarge, match=r"6,291,456 bytes.* room for\s+3,145,728 at a time"):
            client.transfer(ms.Register(sender, (declared("v", LARGE[:2]), declared("w", half))))
        row_again = ms.Pull(sender, (), (ms.Choice("w", np.zeros(4, np.int32)),))
        with pytest.raises(errors.TooLarge, match=r"4,194,320 bytes.* room for\s+3,145,728 at a time"):
            list(client.send_frames([frame_of(row_again)]))
        assert client.transfer(ms.Assign(sender, 1, (ms.Assignment("w", half + 1),))).outcome is ms.Outcome.APPLIED


# --- shared memory ----------------------------------------------------------------------------------------------------


@pytest.fixture
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

    def attach(self, number, segment, **other):
        """The reply to the offer of a segment, as it is but for `other`."""
        known = {"name": segment.name, "nbytes": segment.nbytes, "token": segment.token}
        self.send(pb.Frame(attach=pb.AttachRequest(segment=number, **known | other)))
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
def stream(client, folder):
    with closing(SharedStream(client)) as stream:
        yield stream


@needs_shared_memory
@pytest.mark.parametrize(("suffix", "other"), [("/s", ""), ("", "/s")], ids=["small", "large"])
def test_values_are_written_into_the_region_and_the_rest_comes_in_frames(suffix, other, client, sender, stream, name):
    value, rest, x = (SMALL, LARGE, f"{name}/s") if suffix else (LARGE, SMALL, name)
    region = (0, 8 << 20, value.nbytes + 10)
    pushed = stream.call(push(sender, x, value / 2, pull=(x, name + other)), region)
    assert [stream.offset_of(one.array) for one in pushed.values] == [8 << 20, None]
    np.testing.assert_array_equal(pushed.values[0].array, value - value / 2, strict=True)
    np.testing.assert_array_equal(pushed.values[1].array, rest)
    again = stream.call(push(sender, x, value / 2, sequence=2, pull=(x,)))
    assert stream.offset_of(again.values[0].array) is None, "without a region nothing is written"
    replacement = Segment.create(16 << 20)
    assert stream.attach(0, replacement).attached, "in place of the segment of that number"
    replacement.unlink()
    pushed = stream.call(push(sender, x, value / 4, sequence=3, pull=(x,)), region)
    np.testing.assert_array_equal(pushed.values[0].array, value - value / 2 - value / 2 - value / 4)


@needs_shared_memory
@pytest.mark.parametrize("value", [SMALL, LARGE], ids=["small", "large"])
def test_what_is_in_shared_memory_may_change_when_the_call_was_answered(value, client, sender, stream, name):
    """The server keeps nothing of an initial value, a gradient or an assigned value, but what it has computed of it."""
    x, rows = f"{name}/x", IndexedSlices(value[:2], np.array([1, 1]), value.shape)
    for call in [
        ms.Register(sender, (ms.Declaration(TensorSpec.of(x, value), value, ps.Adam(0.5)),)),
        push(sender, x, value + 1),
        push(sender, x, rows, sequence=2),
        ms.Assign(sender, 3, (ms.Assignment(x, value),), add=True),
        ms.Assign(sender, 4, (ms.Assignment(x, value),)),
    ]:
        stream.call(call, (0, 8 << 20, 5 << 20))
        before = client.value(sender, x)
        np.frombuffer(stream.segment.memory, np.uint8)[DATA_OFFSET:] = 0xFF
        assert client.value(sender, x).tobytes() == before.tobytes()
    np.testing.assert_array_equal(before, value)


@needs_shared_memory
def test_an_invalid_segment_is_refused_with_a_reason_and_the_stream_goes_on(sender, stream, small):
    segment, numbers = stream.segment, "segments are numbered from 0 to 63, not"
    for number, other, reason in [
        (0, {"token": bytes(16)}, "the file does not begin with the token: it is a different file"),
        (0, {"nbytes": 1}, f"the file has {segment.nbytes:,} bytes, and 1 were announced"),
        (64, {}, f"{numbers} 64"),
        (-1, {}, f"{numbers} -1"),
    ]:
        assert stream.attach(number, segment, **other) == pb.AttachReply(reason=reason)
    pulled = stream.call(ms.Pull(sender, (small,)), (0, DATA_OFFSET, 4096))
    np.testing.assert_array_equal(pulled.values[0].array, SMALL)
    assert stream.offset_of(pulled.values[0].array) == DATA_OFFSET, "the segment attached before still is"
    assert stream.attach(63, segment).attached
    header, *_ = frames_of(push(sender, small, SMALL))
    stream.send(header, pb.Frame(attach=pb.AttachRequest()))
    with pytest.raises(errors.Malformed, match="a chunk of data must follow in a transfer, got attach"):
        stream.frame()


PLACES = {
    "segment that was not attached": (7, DATA_OFFSET, "segment 7.* was not attached on this stream"),
    "no segment": (-1, DATA_OFFSET, "was not attached on this stream"),
    "misaligned": (0, DATA_OFFSET + 4, "begin at a multiple of 64"),
    "far away": (0, 1 << 62, "must be inside"),
}


@needs_shared_memory
@pytest.mark.parametrize("kind", ["gradient", "region"])
@pytest.mark.parametrize(("number", "offset", "reason"), PLACES.values(), ids=PLACES)
def test_an_invalid_place_is_malformed_and_nothing_of_its_push_is_applied(
    kind, number, offset, reason, client, sender, stream, name, small
):
    message = ms.Push(sender, 1, (ms.Gradient(name, 0, LARGE), ms.Gradient(small, 0, SMALL)), pull=(name,))
    frame = stream.header(message, (number, offset, 4096) if kind == "region" else None)
    if kind == "gradient":
        shared = frame.push.gradients[1].tensor.shared
        shared.segment, shared.offset = number, offset
    stream.send(frame)
    with pytest.raises(errors.Malformed, match=reason):
        stream.frame()
    assert client.value(sender, name).tobytes() == LARGE.tobytes()
    assert client.transfer(message).outcome is ms.Outcome.APPLIED


@needs_shared_memory
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


@needs_shared_memory
@pytest.mark.usefixtures("folder")
def test_rows_in_shared_memory_count_as_traffic_too(connect):
    rows = IndexedSlices(np.zeros((150_000, 3), np.float32), np.zeros(150_000, np.int64), SMALL.shape)
    with ServerThread(ServerConfig(memory_limit=4 << 20)) as server:
        client = connect(server)
        sender = client.join()
        client.register(sender, w=SMALL)
        refused = pytest.raises(errors.TooLarge, match=r"3,000,000 bytes.* room for 2,097,152 at a time")
        with closing(SharedStream(client)) as stream, refused:
            stream.call(push(sender, "w", rows))
        assert client.status().variables[0].version == 0
