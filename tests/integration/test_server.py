"""A server in the test's process: unary calls, streams, shared memory, every way to break a call; start and stop."""

import gc
import logging
import re
import socket
import sys
import threading
import tracemalloc
from contextlib import closing
from dataclasses import replace

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

import psworker as ps
from psserver.config import ServerConfig
from psserver.core.members.membership import Membership
from psserver.core.shard import Shard
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.codec import encode, to_frame
from pswire.network.channel import check_health
from pswire.specs.consistency import Synchronous
from pswire.tensors.shared_memory import Region
from pswire.tensors.transport import CHUNK, InlineSender
from pswire.tensors.values import IndexedSlices, TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker import ops
from psworker.transport.shared_memory import fetch_segment
from tests.support.combinations import few_fast
from tests.support.files import mapped_segments, shared_folder
from tests.support.servers import Client, Stream, frame_of, frames_of
from tests.support.transports import streams

SMALL = np.arange(6, dtype=np.float32).reshape(2, 3)
SHAPE = (3, CHUNK // 4)  # float32: three chunks
LARGE = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN, ALL = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN, health_pb2.HealthCheckRequest()


@pytest.fixture
def connect(request):
    """A function that makes a client of a server, which is closed after the test."""

    def make(server):
        client = Client(server.address)
        request.addfinalizer(client.channel.close)
        return client

    return make


@pytest.fixture
def client(connect):
    with ServerThread(ServerConfig(lease=60.0)) as server:
        yield connect(server)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """A server logs no warning but of workers that are gone or have left work undone, and leaves no thread."""
    with caplog.at_level(logging.INFO):
        yield
    texts = [one.getMessage() for one in caplog.get_records("call") if one.levelno >= logging.WARNING]
    notes = re.compile("worker '.*' was silent for .* s: its lease has expired|block .* will be handed out again: .*")
    assert [text for text in texts if not notes.fullmatch(text)] == []
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("psserver")] == []


@pytest.fixture
def short_ticks(monkeypatch):
    monkeypatch.setattr("psserver.runtime.clock.TICK", 0.01)


@pytest.fixture
def sender(client):
    """A worker that has joined and registered `large`, LARGE, and `small`, SMALL."""
    sender = client.join()
    client.register(sender, large=LARGE, small=SMALL)
    return sender


@pytest.fixture
def frames(sender):
    """The header and three chunks of a push."""
    frames = frames_of(push(sender, "large", LARGE, pull=("large",)))
    assert [len(frame.chunk) for frame in frames] == [0, CHUNK, CHUNK, CHUNK]
    return frames


def push(sender, name, array, sequence=1, **fields):
    return ms.Push(sender=sender, sequence=sequence, gradients=(ms.Gradient(name, 0, array),), **fields)


def declared(name, array):
    return ms.Declaration(TensorSpec.of(name, array), array)


# --- unary calls ------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_with_its_error_and_the_server_serves_on(client, sender):
    truncated = encode(push(sender, "small", SMALL), InlineSender())
    truncated.gradients[0].tensor.inline = b"123"
    for proto, kind, text in [
        (encode(push(sender, "small", SMALL, pull=("v",)), InlineSender()), errors.UnknownVariable, "no variable 'v'"),
        (encode(push(sender, "small", SMALL * np.nan), InlineSender()), errors.NotFinite, "has 6 of 6 elements"),
        (truncated, errors.Malformed, r"float32\[2, 3\].*24 bytes.* 3"),
    ]:
        with pytest.raises(kind, match=text):
            client.send("Push", proto)
    np.testing.assert_array_equal(client.value(sender, "small"), SMALL)
    assert client.unary(push(sender, "small", SMALL)).outcome is ms.Outcome.APPLIED


def test_garbage_is_malformed_whatever_it_claims_to_be(client):
    for method in ("Join", "Push"):
        with pytest.raises(errors.Malformed, match=rf"4 bytes that are not a paramserver.v1.{method}Request"):
            client.send_bytes(method, b"\xff\xfe\xfd\xfc")
    with pytest.raises(errors.ConfigurationError, match="not a parameter server, or runs a different version"):
        client.send_bytes("Guess", b"")


def test_messages_too_large_for_one_call_are_refused_before_anything_is_done(client, sender):
    with pytest.raises(errors.TooLarge, match=r"3,145,728 bytes of values.*use Transfer"):
        client.unary(push(sender, "small", SMALL, pull=("large",)))
    with pytest.raises(errors.TooLarge):
        client.send_bytes("Push", bytes(5 << 20))
    np.testing.assert_array_equal(client.value(sender, "small"), SMALL)
    assert client.transfer(push(sender, "small", SMALL, pull=("large",))).outcome is ms.Outcome.APPLIED


def test_a_failure_of_the_server_itself_is_logged_and_answered_with_a_reference(client, sender, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "answer_bytes", lambda self, message, **_: 1 // 0)
        with pytest.raises(errors.InternalError, match="the server failed on this message") as caught:
            client.unary(ms.Pull(sender=sender, names=("small",)))
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info[0] is ZeroDivisionError
    assert record.args[0] in str(caught.value)
    assert "ZeroDivisionError" not in str(caught.value)
    caplog.clear()
    assert client.unary(push(sender, "small", SMALL)).outcome is ms.Outcome.APPLIED


# --- transfers --------------------------------------------------------------------------------------------------------

ANSWER = pb.Frame(pushed=pb.PushReply(outcome=pb.OUTCOME_APPLIED))
BROKEN = {
    "without the last chunk": (lambda f: f[:-1], "ended before the data that its header announced: not applied"),
    "two headers": (lambda f: [f[0], *f], "a chunk of data must follow in a transfer, got push"),
    "chunks first": (lambda f: f[1:], "begins with"),
    "an answer first": (lambda f: [ANSWER, *f[1:]], "Pushed is an answer"),
}


@pytest.mark.parametrize(("damage", "complaint"), BROKEN.values(), ids=BROKEN)
def test_a_broken_transfer_is_malformed_and_nothing_of_it_applied(damage, complaint, client, sender, frames):
    with pytest.raises(errors.ParamServerError, match=complaint) as caught:
        list(client.send_frames(damage(frames)))
    assert type(caught.value) is errors.Malformed
    assert client.value(sender, "large").tobytes() == LARGE.tobytes()
    (answer,) = client.send_frames(frames)
    assert answer.outcome is ms.Outcome.APPLIED


def test_a_stream_takes_any_number_of_calls_until_one_fails_and_those_before_it_stay(client, sender, frames):
    assert list(client.send_frames([])) == []
    two = np.full(2, 2.0)
    assign = frames_of(ms.Assign(sender=sender, sequence=2, assignments=(ms.Assignment("large", LARGE),)))
    calls = [
        [frame_of(ms.Register(sender=sender, declarations=(declared("two", two),)))],
        frames,
        [frame_of(ms.Pull(sender=sender, names=("two",)))],
        assign,
        [frame_of(ms.Pull(sender=sender, names=("large", "two")))],
        [frame_of(ms.Pull(sender=sender, names=("nowhere",)))],
        frames_of(push(sender, "large", LARGE, sequence=3)),
    ]
    answers = client.send_frames(frame for call in calls for frame in call)
    found = [value.array for _ in range(5) for value in getattr(next(answers), "values", ())]
    for array, expected in zip(found, (two, np.zeros(SHAPE), two, LARGE, two), strict=True):
        np.testing.assert_array_equal(array, expected)
    with pytest.raises(errors.UnknownVariable):
        next(answers)
    np.testing.assert_array_equal(client.value(sender, "large"), LARGE)


@pytest.mark.usefixtures("short_ticks")
def test_a_stream_rests_between_two_calls_until_the_lease_ends_but_a_transfer_that_stalls_is_aborted(connect):
    with ServerThread(ServerConfig(lease=0.2)) as server:
        client = connect(server)
        pull = frames_of(ms.Pull(sender=client.join()))
        stream = Stream(client)
        stream.send(*pull)
        assert stream.answer().global_step == 0
        with pytest.raises(errors.NotJoined, match=r"was silent for more than its lease of 0\.2 s"):
            stream.answer()
        sender = client.join()
        client.register(sender, w=LARGE)
        stream = Stream(client)
        stream.send(frames_of(push(sender, "w", LARGE))[0])
        with pytest.raises(errors.TimedOut, match=r"^the transfer stalled for 0\.2 s, or was slower than"):
            stream.answer()
        stream.close()
        assert client.status().variables[0].version == 0


def test_announced_terabytes_are_refused_at_once(client, sender):
    register = frames_of(ms.Register(sender=sender, declarations=(declared("huge", LARGE),)))
    register[0].register.declarations[0].tensor.shape[:] = [1 << 20, 1 << 20]
    rows = frames_of(push(sender, "large", IndexedSlices(LARGE, np.zeros(3, np.int64), SHAPE)))
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


def test_a_transfer_that_is_cancelled_midway_leaves_the_variable_as_it_was(client, sender, frames):
    stream = Stream(client)
    stream.send(*frames[:3])
    stream.flush()
    stream.close()
    assert client.value(sender, "large").tobytes() == LARGE.tobytes()
    (answer,) = client.send_frames(frames)
    assert answer.outcome is ms.Outcome.APPLIED


def test_a_transfer_above_the_traffic_limit_is_refused_with_the_figures_also_of_rows_in_shared_memory(connect, folder):
    with ServerThread(ServerConfig(memory_limit=2 * LARGE.nbytes)) as server:
        client = connect(server)
        sender, half = client.join(), LARGE[:1]
        client.register(sender, w=half)
        with pytest.raises(errors.TooLarge, match=r"6,291,456 bytes.* room for\s+3,145,728 at a time"):
            client.transfer(ms.Register(sender=sender, declarations=(declared("v", LARGE[:2]), declared("w", half))))
        row_again = ms.Pull(sender=sender, choices=(ms.Choice("w", np.zeros(4, np.int32)),))
        with pytest.raises(errors.TooLarge, match=r"4,194,320 bytes.* room for\s+3,145,728 at a time"):
            list(client.send_frames([frame_of(row_again)]))
        rows = IndexedSlices(np.zeros((4, CHUNK // 4), np.float32), np.zeros(4, np.int64), half.shape)
        refused = pytest.raises(errors.TooLarge, match=r"4,194,336 bytes.* room for 3,145,728 at a time")
        with closing(SharedStream(client, sender)) as stream, refused:
            stream.call(push(sender, "w", rows))
        assign = ms.Assign(sender=sender, sequence=1, assignments=(ms.Assignment("w", half + 1),))
        assert client.transfer(assign).outcome is ms.Outcome.APPLIED


# --- shared memory ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


class SharedStream(Stream):
    """An open Transfer of a member that has a segment of 16 MiB as number 0, which everything is put into."""

    def __init__(self, client, sender):
        super().__init__(client)
        self.sender = sender
        self.fetch(0, 16 << 20)

    def fetch(self, number, nbytes):
        reply = self.attach(number, nbytes)
        self.memories[number] = fetch_segment(reply, number, nbytes).memory

    def header(self, message, *region):
        """The frame of a message with all of its tensors in segment 0, as is the region for its answer, if given."""
        frame = to_frame(message, Region(0, self.memories[0]))
        if region:
            frame.answer_region.offset, frame.answer_region.nbytes = region
        return frame

    def call(self, message, *region):
        self.send(self.header(message, *region))
        return self.answer()

    def offset_of(self, array):
        """The offset of an array in segment 0; None if it is not there."""
        return Region(0, self.memories[0], len(self.memories[0]), 0).offset_of(array)


@pytest.fixture
def stream(client, sender):
    with closing(SharedStream(client, sender)) as stream:
        yield stream


@pytest.mark.parametrize(("x", "other"), [("small", "large"), ("large", "small")])
def test_values_are_written_into_the_region_and_the_rest_comes_in_frames(x, other, sender, stream):
    value, rest = (SMALL, LARGE) if x == "small" else (LARGE, SMALL)
    region = 8 << 20, value.nbytes + 10
    pushed = stream.call(push(sender, x, value / 2, pull=(x, other)), *region)
    assert [stream.offset_of(one.array) for one in pushed.values] == [8 << 20, None]
    np.testing.assert_array_equal(pushed.values[0].array, value - value / 2, strict=True)
    np.testing.assert_array_equal(pushed.values[1].array, rest)
    again = stream.call(push(sender, x, value / 2, sequence=2, pull=(x,)))
    assert stream.offset_of(again.values[0].array) is None, "without a region nothing is written"
    stream.fetch(0, 16 << 20)  # in place of the segment of that number
    pushed = stream.call(push(sender, x, value / 4, sequence=3, pull=(x,)), *region)
    np.testing.assert_array_equal(pushed.values[0].array, value - value / 2 - value / 2 - value / 4)


@pytest.mark.parametrize("value", [SMALL, LARGE], ids=["small", "large"])
def test_what_is_in_shared_memory_may_change_when_the_call_was_answered(value, client, sender, stream):
    """The server keeps nothing of an initial value, a gradient or an assigned value, but what it has computed of it."""
    x, rows = "x", IndexedSlices(value[:2], np.array([1, 1]), value.shape)
    for call in [
        ms.Register(sender=sender, declarations=(ms.Declaration(TensorSpec.of(x, value), value, ps.Adam(0.5)),)),
        push(sender, x, value + 1),
        push(sender, x, rows, sequence=2),
        ms.Assign(sender=sender, sequence=3, assignments=(ms.Assignment(x, value),), add=True),
        ms.Assign(sender=sender, sequence=4, assignments=(ms.Assignment(x, value),)),
    ]:
        stream.call(call, 8 << 20, 5 << 20)
        before = client.value(sender, x)
        stream.memories[0][:] = 0xFF
        assert client.value(sender, x).tobytes() == before.tobytes()
    np.testing.assert_array_equal(before, value)


def test_an_invalid_segment_is_refused_with_a_reason_and_the_stream_goes_on(sender, stream):
    numbers = "segments are numbered from 0 to 15, not"
    for number, nbytes, reason in [
        (16, 4096, f"{numbers} 16"),
        (-1, 4096, f"{numbers} -1"),
        (0, 0, "a segment of 0 bytes"),
        (0, -4096, "a segment of -4,096 bytes"),
    ]:
        assert stream.attach(number, nbytes) == pb.AttachReply(reason=reason)
    reply = stream.attach(0, (1 << 63) - 1)
    assert re.fullmatch("a segment of .*, but 'w0' has 16,777,216 and .*: raise --shared-memory-limit", reply.reason)
    pulled = stream.call(ms.Pull(sender=sender, names=("small",)), 0, 4096)
    np.testing.assert_array_equal(pulled.values[0].array, SMALL)
    assert stream.offset_of(pulled.values[0].array) == 0, "the segment attached before still is"
    stream.fetch(15, 4096)
    header, *_ = frames_of(push(sender, "small", SMALL))
    stream.send(header, pb.Frame(attach=pb.AttachRequest()))
    with pytest.raises(errors.Malformed, match="a chunk of data must follow in a transfer, got attach"):
        stream.frame()


PLACES = [
    (7, 0, "segment 7.* was not attached on this stream"),
    (-1, 0, "was not attached on this stream"),
    (0, 4, "begin at a multiple of 64"),
    (0, 1 << 62, "must be inside"),
]


@pytest.mark.parametrize("kind", ["gradient", "region"])
@pytest.mark.parametrize("place", few_fast([(one,) for one in PLACES], slow=3))
def test_an_invalid_place_is_malformed_and_nothing_of_its_push_is_applied(kind, place, client, sender, stream):
    gradients = ms.Gradient("large", 0, LARGE), ms.Gradient("small", 0, SMALL)
    message = ms.Push(sender=sender, sequence=1, gradients=gradients, pull=("large",))
    frame = stream.header(message, 8 << 20, 4096)
    shared = frame.answer_region if kind == "region" else frame.push.gradients[1].tensor.shared
    shared.segment, shared.offset, reason = place
    stream.send(frame)
    with pytest.raises(errors.Malformed, match=reason):
        stream.frame()
    assert client.value(sender, "large").tobytes() == LARGE.tobytes()
    assert client.transfer(message).outcome is ms.Outcome.APPLIED


def test_a_session_works_where_no_memory_is_shared_and_its_tensor_transport_is_in_the_status(connect, folder, caplog):
    gc.collect()  # of streams of other tests
    with ServerThread(ServerConfig(shared_memory=False)) as server, ps.session(server.address, "w0"):
        W = ps.Variable(LARGE, name="W")
        ps.GradientDescent(0.5).minimize(ops.sum(W * 2.0))
        np.testing.assert_array_equal(W.value, LARGE - 1)
        assert mapped_segments() == []
        while connect(server).status().workers[0].tensor_transport != streams():
            pass
    how = {"direct": "direct connections", "gRPC": "gRPC"}[streams()]
    assert f"so tensors go by {how}: the server was started with --no-shared-memory" in caplog.text


# --- start and stop ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "unix:{folder}/new", "unix:{folder}/left-behind"])
def test_a_server_answers_at_a_free_port_and_at_a_socket_also_one_that_a_killed_server_left(bind, connect, tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/left-behind")
    with ServerThread(ServerConfig(bind.format(folder=tmp_path))) as server:
        assert server.address.rpartition(":")[0] == bind.format(folder=tmp_path).rpartition(":")[0]
        assert not server.address.endswith(":0")
        assert connect(server).unary(ms.Join(worker="w0")).number == 0


def test_an_address_that_cannot_be_bound_is_refused_in_one_line_with_the_reason(tmp_path, capfd):
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"{tmp_path}/taken")
        unix.listen()
        for address, reason in {
            f"127.0.0.1:{tcp.getsockname()[1]}": "Address already in use",
            f"unix:{tmp_path}/taken": "Address already in use",
            "192.0.2.1:0": "Cannot assign requested address",
            "unix:/nowhere/at/all": "No such file or directory",
        }.items():
            with pytest.raises(errors.ConfigurationError) as caught, ServerThread(ServerConfig(address, insecure=True)):
                pass
            advice = f"choose another address, or a free port: --bind {address.rpartition(':')[0]}:0"
            if address.startswith("unix:"):
                advice = "choose another path"
            assert str(caught.value) == f"cannot listen on {address}: {reason}; {advice}"
    assert capfd.readouterr().err == ""


def test_a_shard_of_a_checkpoint_folder_has_one_server_at_a_time_until_it_ends_or_cannot_start(tmp_path):
    config = ServerConfig(checkpoint_dir=tmp_path / "kept", shards=2)
    refused = pytest.raises(errors.StorageError, match=r"kept, shard 0, is in use by another process: stop that server")
    with ServerThread(config), ServerThread(replace(config, shard=1)):
        for shards in (2, 3):
            with refused, ServerThread(replace(config, shards=shards)):
                pass
    run_file = tmp_path / "kept/shard-0-of-2.json"
    data = run_file.read_bytes()
    run_file.write_bytes(b"")
    with pytest.raises(errors.DamagedFile), ServerThread(config):
        pass
    run_file.write_bytes(data)
    with ServerThread(config) as server:
        assert server.address


def test_a_server_whose_address_is_taken_changes_no_files(tmp_path):
    """A run that never began would make the next start one after a loss."""
    config = ServerConfig(checkpoint_dir=tmp_path / "kept", shards=2)
    with ServerThread(config):
        pass
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        second = replace(config, bind=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(errors.ConfigurationError, match="cannot listen"), ServerThread(second):
            pass
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    with ServerThread(config) as server:
        assert server.address


@pytest.mark.usefixtures("short_ticks")
def test_a_server_that_does_not_linger_ends_by_itself_when_the_job_is_done(connect, caplog):
    with ServerThread(ServerConfig(linger=0.0)) as server:
        client = connect(server)
        watched = HealthStub(client.channel).Watch(ALL, timeout=30)
        assert next(watched).status == SERVING
        sender = client.join("w0")
        client.register(sender, w=np.zeros(2, np.float32))
        client.unary(push(sender, "w", np.zeros(2, np.float32)))
        client.unary(ms.Leave(sender))
        assert [answer.status for answer in watched] == [NOT_SERVING]
        assert [(worker.state, worker.steps) for worker in server.report.workers] == [("left", 1)]
    assert caplog.messages == [
        "worker 'w0' joined (number 0, incarnation 1)",
        "worker 'w0' finished after 1 step",
        "the job is done, and no worker has joined for 0 s",
        "stopping: calls in progress get 5 s",
    ]


@pytest.mark.parametrize("service", ["", "paramserver.v1.ParameterServer"])
def test_health_is_serving_until_the_server_stops_and_that_of_other_services_unknown(service, connect):
    with ServerThread(ServerConfig(grace=60.0)) as server:
        assert check_health(server.address, timeout=30)
        health = HealthStub(connect(server).channel)
        request, other = (health_pb2.HealthCheckRequest(service=name) for name in (service, "other"))
        assert health.Check(request, timeout=30).status == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(other, timeout=30)
        watched, unknown = health.Watch(request, timeout=30), health.Watch(other, timeout=30)
        assert (next(watched).status, next(unknown).status) == (SERVING, UNKNOWN)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert [[answer.status for answer in watched], list(unknown)] == [[NOT_SERVING], []]


def test_reflection_lists_the_services_if_it_is_on_and_needs_its_package(connect, monkeypatch):
    def services_of(client):
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = ServerReflectionStub(client.channel).ServerReflectionInfo(iter([request]), timeout=30)
        return {service.name for service in answer.list_services_response.service}

    with ServerThread() as server, pytest.raises(grpc.RpcError) as caught:
        services_of(connect(server))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with ServerThread(ServerConfig(reflection=True)) as server:
        assert {"paramserver.v1.ParameterServer", "grpc.health.v1.Health"} <= services_of(connect(server))
    monkeypatch.setitem(sys.modules, "grpc_reflection.v1alpha", None)
    extra = pytest.raises(errors.ConfigurationError, match=r"-m pip install 'grpcio-reflection>=")
    with extra, ServerThread(ServerConfig(reflection=True)):
        pass


def test_a_stream_between_two_calls_and_one_whose_call_is_pending_end_at_once_when_the_server_stops(connect):
    with ServerThread(ServerConfig(grace=1000.0, consistency=Synchronous(2))) as server:
        client = connect(server)
        sender, idle, pending = client.join(), Stream(client), Stream(client)
        idle.send(*frames_of(ms.Pull(sender=sender)))
        assert idle.answer().global_step == 0
        client.register(sender, w=np.zeros(2, np.float32))
        pending.send(*frames_of(push(sender, "w", np.zeros(2, np.float32))))
        while not client.status().workers[0].waiting_for:
            pass
    for stream in (idle, pending):
        with pytest.raises(errors.Unavailable, match="the server is stopping") as caught:
            stream.answer()
        assert caught.value.retry
        stream.close()


def slow_transfer(client):
    """A push of 4 MiB whose last chunk is still to be sent: its stream, and that chunk."""
    array, sender = np.ones(1 << 19), client.join()
    client.register(sender, w=np.zeros_like(array))
    stream = Stream(client)
    *frames, last = frames_of(push(sender, "w", array))
    stream.send(*frames)
    stream.flush()
    client.status()
    return stream, last


def test_a_transfer_in_progress_is_finished_within_the_grace(connect):
    with ServerThread(ServerConfig(grace=30.0)) as server:
        client = connect(server)
        stream, last = slow_transfer(client)
        watched = HealthStub(client.channel).Watch(ALL, timeout=30)
        assert next(watched).status == SERVING
        stopper = threading.Thread(target=server.__exit__, args=(None, None, None))
        stopper.start()
        assert next(watched).status == NOT_SERVING
        watched.cancel()
        stream.send(last)
        assert stream.answer().outcome is ms.Outcome.APPLIED
        with pytest.raises(errors.Unavailable, match="the server is stopping"):
            stream.answer()
        stopper.join()
        stream.close()
    assert server.report.global_step == 1


def test_a_transfer_that_outlasts_the_grace_is_cut_off_and_nothing_of_it_applied(connect):
    with ServerThread(ServerConfig(grace=0.0)) as server:
        stream, last = slow_transfer(connect(server))
    stream.send(last)
    with pytest.raises(errors.Unavailable):
        stream.answer()
    stream.close()
    assert server.report.global_step == 0


@pytest.fixture
def one_of_two(connect, tmp_path):
    """A server of two that keeps its state, with a client, and a worker that takes part."""
    with ServerThread(ServerConfig(shards=2, checkpoint_dir=tmp_path / "kept", lease=60.0)) as server:
        client = connect(server)
        joined = client.unary(ms.Join(worker="w0", shards=2))
        sender = ms.Sender("w0", joined.incarnation)
        client.register(sender, w=np.zeros(2, np.float32))
        yield server, client, sender


def test_a_server_of_several_serves_workers_that_are_stopped_with_it_until_they_have_left(one_of_two, monkeypatch):
    monkeypatch.setattr("psserver.rpc.server.LEAVE_TIMEOUT", 1000.0)
    server, client, sender = one_of_two
    watched = HealthStub(client.channel).Watch(ALL, timeout=30)
    assert next(watched).status == SERVING
    stopper = threading.Thread(target=server.__exit__, args=(None, None, None))
    stopper.start()
    assert next(watched).status == NOT_SERVING
    watched.cancel()
    assert client.unary(push(sender, "w", np.ones(2, np.float32), shards=(1,))).outcome is ms.Outcome.APPLIED
    client.unary(ms.Leave(sender))
    stopper.join()
    assert [(worker.state, worker.steps) for worker in server.report.workers] == [("left", 1)]


def test_a_server_of_several_does_not_wait_longer_for_workers_than_it_says(one_of_two, monkeypatch, caplog):
    monkeypatch.setattr("psserver.rpc.server.LEAVE_TIMEOUT", 0.01)
    server, _, _ = one_of_two
    server.__exit__(None, None, None)
    assert [worker.state for worker in server.report.workers] == ["live"]
    assert caplog.messages[-3:-1] == ["stopping: workers get 0.01 s to leave", "stopping: calls in progress get 5 s"]


@pytest.mark.usefixtures("short_ticks")
def test_a_tick_that_fails_is_logged_and_the_next_one_works(connect, monkeypatch, caplog):
    failures, expire = [ZeroDivisionError("once")], Membership.expire

    def fail_once(self, names, now):
        if failures:
            raise failures.pop()
        return expire(self, names, now)

    monkeypatch.setattr(Membership, "expire", fail_once)
    with ServerThread(ServerConfig(lease=0.02)) as server:
        client = connect(server)
        client.join()
        while client.status().workers[0].state == "live":
            pass
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info[0] is ZeroDivisionError
    caplog.clear()
