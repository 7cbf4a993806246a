"""Transfers: tensors of any size, and every way in which one can break, with nothing of it applied."""

import gc
import queue
import tracemalloc

import grpc
import numpy as np
import pytest

import psserver.runtime.clock
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire.channel import error_from
from pswire.messages import Assign, Assignment, Declaration, Gradient, Leave, Outcome, Pull, Push, Register
from pswire.specs.consistency import Synchronous
from pswire.tensors import stream
from pswire.tensors.transport import CHUNK
from pswire.tensors.values import IndexedSlices, TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from tests.server_client import frame_of, frames_of

SHAPE = (3, CHUNK // 4)  # float32: three chunks
W = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)


@pytest.fixture(scope="module")
def server():
    with ServerThread(ServerConfig(lease=60.0)) as server:
        yield server


@pytest.fixture
def sender(client, name):
    sender = client.join(name[:100])
    client.register(sender, **{name: W})
    return sender


@pytest.fixture
def push(sender, name):
    return Push(sender, 1, (Gradient(name, 0, W),), pull=(name,))


@pytest.fixture
def frames(push):
    """The header and three chunks of a push."""
    frames = frames_of(push)
    assert [len(frame.chunk) for frame in frames] == [0, CHUNK, CHUNK, CHUNK]
    return frames


def undeclared(name, array):
    return Declaration(TensorSpec.of(name, array), array)


def inline_in_part(frames):
    frames[0].push.gradients[0].tensor.inline = frames[1].chunk
    return frames[:1]


ANSWER = pb.Frame(pushed=pb.PushReply(outcome=pb.OUTCOME_APPLIED))
BROKEN = {
    "without the last chunk": (lambda f: f[:-1], "ended before the data that its header announced: not applied"),
    "a longer chunk": (lambda f: [*f[:-1], pb.Frame(chunk=f[-1].chunk + b"x")], "1 more bytes"),
    "two headers": (lambda f: [f[0], *f], "a chunk of data must follow in a transfer, got push"),
    "an empty chunk": (lambda f: [*f[:2], pb.Frame(chunk=b""), *f[2:]], "a chunk of data must follow in a transfer"),
    "chunks first": (lambda f: f[1:], "begins with"),
    "an answer first": (lambda f: [ANSWER, *f[1:]], "Pushed is an answer"),
    "the header alone": (lambda f: f[:1], "ended before the data"),
    "inline in part": (inline_in_part, "3145728 bytes.* 1048576"),
}


@pytest.mark.parametrize(("damage", "complaint"), BROKEN.values(), ids=BROKEN)
def test_a_broken_transfer_is_malformed_and_nothing_of_it_applied(
    damage, complaint, client, sender, push, frames, name
):
    with pytest.raises(errors.ParamServerError, match=complaint) as caught:
        list(client.send_frames(damage(frames)))
    assert type(caught.value) is errors.Malformed
    assert client.value(sender, name).tobytes() == W.tobytes()
    assert client.transfer(push).outcome is Outcome.APPLIED


def test_a_stream_takes_any_number_of_calls_large_or_small(client, sender, push, name):
    assert list(client.send_frames([])) == []
    zeros, two = np.zeros(SHAPE, np.float32), np.full(2, 2.0)
    calls = [
        [frame_of(Register(sender, (undeclared(f"{name}/small", two),)))],
        frames_of(push),
        [frame_of(Pull(sender, (f"{name}/small",)))],
        frames_of(Assign(sender, 2, (Assignment(name, W),))),
        [frame_of(Pull(sender, (name, f"{name}/small")))],
    ]
    answers = list(client.send_frames(frame for call in calls for frame in call))
    found = [value.array for answer in answers for value in getattr(answer, "values", ())]
    for array, expected in zip(found, (two, zeros, two, W, two), strict=True):
        np.testing.assert_array_equal(array, expected)
    assert (answers[1].outcome, answers[3].outcome) == (Outcome.APPLIED, Outcome.APPLIED)


@pytest.mark.parametrize(
    ("bad", "error"), [(None, errors.Malformed), ("nowhere", errors.UnknownVariable)], ids=["chunk", "call"]
)
def test_an_error_ends_the_stream_and_the_calls_before_it_stay(bad, error, client, sender, push, frames, name):
    after = frame_of(Pull(sender, (bad,))) if bad else pb.Frame(chunk=b"x")
    answers = client.send_frames([*frames, after, *frames_of(Assign(sender, 2, (Assignment(name, W),)))])
    assert next(answers).outcome is Outcome.APPLIED
    with pytest.raises(error):
        next(answers)
    np.testing.assert_array_equal(client.value(sender, name), np.zeros(SHAPE))


def test_between_two_calls_a_stream_may_rest_for_longer_than_a_lease(connect, monkeypatch):
    monkeypatch.setattr(psserver.runtime.clock, "TICK", 0.01)
    with ServerThread(ServerConfig(lease=0.3)) as server:
        client, pieces = connect(server), queue.Queue()
        pull = frames_of(Pull(client.join(), ()))
        answers = client.send_frames(iter(pieces.get, None))
        pieces.put(*pull)
        assert next(answers).global_step == 0
        while client.status().workers[0].state == "live":
            pass
        pieces.put(*pull)
        with pytest.raises(errors.NotJoined):
            next(answers)
        pieces.put(None)


def announced(frames, *shape):
    """Frames whose header announces another shape: of a declaration, or of the first axes of a gradient."""
    if frames[0].HasField("register"):
        frames[0].register.declarations[0].tensor.shape[:] = shape
    else:
        gradient = frames[0].push.gradients[0]
        gradient.tensor.shape[: len(shape)] = shape
        if gradient.HasField("indices"):
            gradient.indices.shape[:] = shape
    return frames


ONE_ROW = IndexedSlices(W, np.zeros(len(W), np.int64), W.shape)  # any number of such rows is right for the variable
TERABYTES = {
    "known variable": (W, [1 << 20, 1 << 20], errors.ShapeMismatch, r"float32\[1048576, 1048576\]"),
    "new variable": (None, [1 << 20, 1 << 20], errors.TooLarge, "use more shards, or raise --memory-limit"),
    "rows": (ONE_ROW, [1 << 34], errors.TooLarge, "room for"),
    "more rows than there is memory": (ONE_ROW, [1 << 55], errors.Malformed, None),
}


@pytest.mark.parametrize(("array", "shape", "error", "message"), TERABYTES.values(), ids=TERABYTES)
def test_announced_terabytes_are_refused_at_once(array, shape, error, message, client, sender, name):
    push = array is not None and Push(sender, 1, (Gradient(name, 0, array),))
    frames = announced(frames_of(push or Register(sender, (undeclared(f"{name}/huge", W),))), *shape)
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message):
            list(client.send_frames(frames))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_rows_of_a_transfer_are_cut_between_values_and_numbers_wherever_a_chunk_ends(client, sender, name):
    rows = IndexedSlices(W[[2, 2, 1]], np.array([0, 0, 2]), W.shape)
    frames = frames_of(Push(sender, 1, (Gradient(name, 0, rows),), pull=(name,)))
    assert [len(frame.chunk) for frame in frames] == [0, CHUNK, CHUNK, CHUNK, 24]
    with pytest.raises(errors.Malformed, match="ended before the data"):
        list(client.send_frames(frames[:-1]))
    (pushed,) = client.send_frames(frames)
    np.testing.assert_array_equal(pushed.values[0].array, [W[0] - 2 * W[2], W[1], W[2] - W[1]])


def test_a_transfer_that_is_cancelled_midway_leaves_the_variable_as_it_was(client, sender, push, frames, name):
    pieces = queue.Queue()
    for frame in frames[:3]:
        pieces.put(frame)
    call = client.stub.Transfer(iter(pieces.get, None), timeout=30)
    while not pieces.empty():  # gRPC takes the next frame when it has handed the last one to the connection
        pass
    call.cancel()
    pieces.put(None)
    with pytest.raises(grpc.RpcError):
        list(call)
    assert client.value(sender, name).tobytes() == W.tobytes()
    assert client.transfer(push).outcome is Outcome.APPLIED


def test_a_transfer_that_stalls_is_aborted_after_a_lease(connect):
    with ServerThread(ServerConfig(lease=0.2)) as server:
        client = connect(server)
        sender = client.join()
        client.register(sender, w=W)
        frames = frames_of(Push(sender, 1, (Gradient("w", 0, W),)))
        pieces = queue.Queue()
        pieces.put(frames[0])
        call = client.stub.Transfer(iter(pieces.get, None), timeout=30)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        pieces.put(None)
        error = error_from(caught.value, server.address)
        assert (type(error), str(error)) == (errors.TimedOut, "the transfer stalled for 0.2 s and was aborted")
        assert client.status().variables[0].version == 0


def test_a_transfer_above_the_traffic_limit_is_refused_with_the_figures(connect):
    with ServerThread(ServerConfig(memory_limit=2 * W.nbytes)) as server:
        client = connect(server)
        sender = client.join()
        half = W[:1]
        client.register(sender, w=half)
        with pytest.raises(errors.TooLarge, match=r"6,291,456 bytes.* room for\s+3,145,728 at a time"):
            client.transfer(Register(sender, (undeclared("v", W[:2]), undeclared("w", half))))
        assert client.transfer(Assign(sender, 1, (Assignment("w", half + 1),))).outcome is Outcome.APPLIED


def test_memory_of_a_held_push_whose_worker_leaves_is_free_without_a_garbage_collection(connect):
    with ServerThread(ServerConfig(consistency=Synchronous(2))) as server:
        client = connect(server)
        sender = client.join()
        client.register(sender, w=W)
        gc.disable()
        tracemalloc.start()
        try:
            call = client.stub.Transfer(iter(frames_of(Push(sender, 1, (Gradient("w", 0, W),)))), timeout=30)
            while not client.status().workers[0].waiting_for:
                pass
            assert memory_of(stream) >= W.nbytes
            client.unary(Leave(sender))
            with pytest.raises(grpc.RpcError, match="worker 'w0' has left: join again"):
                list(call)
            assert memory_of(stream) < W.nbytes
        finally:
            tracemalloc.stop()
            gc.enable()


def memory_of(module):
    """Bytes that were allocated in a module, and are still in use."""
    taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, module.__file__)])
    return sum(trace.size for trace in taken.traces)
