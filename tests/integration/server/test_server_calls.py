"""Calls to a server over gRPC, unary and on streams: what they do, every way in which one can break, and its limits."""

import tracemalloc

import numpy as np
import pytest

import psserver.runtime.clock
from psserver.config import ServerConfig
from psserver.core.shard import Shard
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.codec import encode
from pswire.tensors.transport import CHUNK, InlineSender
from pswire.tensors.values import IndexedSlices, TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from tests.server_client import Stream, frame_of, frames_of

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
        assert client.transfer(ms.Assign(sender, 1, (ms.Assignment("w", half + 1),))).outcome is ms.Outcome.APPLIED
