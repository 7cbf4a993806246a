"""Peers that take their time: streams, transfers, watches and unknown connections end, and others are served."""

import time

import grpc
import numpy as np
import pytest

from benchmarks._raw_http2 import ConnectionEnded, RawConnection, message
from psserver.config import ServerConfig
from psserver.rpc.deadline import Deadline
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.network.channel import SERVER_OPTIONS, check_health
from pswire.security.credentials import NO_CREDENTIALS
from pswire.security.token_files import Role
from pswire.v1 import paramserver_pb2 as pb
from tests.support.servers import Client, Stream, frame_of, frames_of, token_credentials

LARGE = np.zeros(1 << 20, np.float32)  # 4 MiB, in chunks
TRANSFER, WATCH = "/paramserver.v1.ParameterServer/Transfer", "/grpc.health.v1.Health/Watch"


@pytest.fixture
def connect(request):
    """A function that makes a client, or a raw connection, which is closed after the test."""

    def make(server, kind=Client):
        one = kind(server.address)
        request.addfinalizer(one.channel.close if kind is Client else one.close)
        return one

    return make


@pytest.fixture
def server():
    with ServerThread(ServerConfig(lease=60.0, grace=0.0)) as server:
        yield server


def test_a_push_that_sends_a_little_now_and_then_is_aborted(connect, server, monkeypatch):
    monkeypatch.setattr("psserver.rpc.service.Deadline", lambda seconds: Deadline(seconds / 200))
    client = connect(server)
    sender = client.join()
    client.register(sender, w=LARGE)
    stream = Stream(client)
    stream.send(frames_of(ms.Push(sender=sender, sequence=1, gradients=(ms.Gradient("w", 0, LARGE),)))[0])
    for _ in range(300):
        stream.send(pb.Frame(chunk=bytes(4)))
        time.sleep(0.01)  # far less than 0.3 s
        if not stream.is_active():
            break
    assert not stream.is_active(), "it goes on"
    with pytest.raises(errors.TimedOut, match=r"stalled for 0\.3 s, or was slower than 262,144 bytes per second"):
        stream.answer()
    assert client.status().variables[0].version == 0


def test_a_stream_of_a_stranger_ends_at_once_and_one_of_a_member_rests(connect, server):
    client, pull = connect(server), frame_of(ms.Pull(sender=ms.Sender("w0", 1), names=()))
    with pytest.raises(errors.Unauthenticated, match="a Transfer is for members"):
        Stream(client).frame()
    client.join()
    member = Stream(client)
    for end in ((), (None,)):
        member.send(pull, *end)
        assert member.answer().global_step == 0


@pytest.mark.parametrize("how", ["left", "replaced"])
def test_the_streams_of_a_worker_end_when_it_is_no_member_any_more(connect, monkeypatch, how):
    monkeypatch.setattr("psserver.runtime.clock.TICK", 0.01)
    with ServerThread(ServerConfig(lease=60.0, grace=0.0)) as server:
        client = connect(server)
        sender, other = client.join(), client.join("other")
        streams = [Stream(client, client.token(caller)) for caller in (sender, sender, other)]
        for stream, caller in zip(streams, (sender, sender, other), strict=True):
            stream.send(frame_of(ms.Pull(sender=caller, names=())))
            assert stream.answer().global_step == 0
        if how == "left":
            client.unary(ms.Leave(sender))
        else:
            client.join()
        for stream in streams[:2]:
            with pytest.raises((errors.NotJoined, errors.Zombie), match=r"has left|has joined since"):
                stream.answer()
        streams[2].send(frame_of(ms.Pull(sender=other, names=())), None)
        assert streams[2].answer().global_step == 0


def test_a_member_has_so_many_streams(connect, server, monkeypatch):
    monkeypatch.setattr("psserver.rpc.streams.STREAMS_OF_A_MEMBER", 2)
    client = connect(server)
    sender, other = client.join(), client.join("other")
    streams = [Stream(client, client.token(sender)) for _ in range(3)]
    for stream in streams[:2]:
        stream.send(frame_of(ms.Pull(sender=sender, names=())))
        assert stream.answer().global_step == 0
    streams[2].send(frame_of(ms.Pull(sender=sender, names=())))
    with pytest.raises(errors.Unavailable, match="worker 'w0' has 2 streams open"):
        streams[2].answer()
    assert client.transfer(ms.Pull(sender=other, names=())).global_step == 0


def test_a_connection_has_so_many_calls_whether_they_are_reset_or_not(connect, server):
    connection = connect(server, RawConnection)
    for _ in range(40):
        connection.open(TRANSFER)
    while len(connection.ended) < 8:
        connection.read(5.0)
    assert all(connection.ended.values())
    resetting = connect(server, RawConnection)
    resetting.send(resetting.opened_and_reset(TRANSFER, 2_000))
    client = connect(server)
    assert client.join().incarnation == 1
    assert client.status().workers[0].name == "w0"


def test_watches_of_the_health_end_the_oldest_first_and_each_after_some_minutes(connect, server, monkeypatch):
    monkeypatch.setattr("psserver.rpc.health.MAX_WATCHES", 3)
    connection = connect(server, RawConnection)
    streams = []
    for _ in range(5):  # one after the other: of some that come together a server may begin with any
        streams.append(connection.open(WATCH, message(b""), end=True))
        while not connection.received.get(streams[-1]):
            connection.read(5.0)
    while not set(streams[:2]) <= set(connection.ended):
        connection.read(5.0)
    assert set(connection.ended) == set(streams[:2])
    monkeypatch.setattr("psserver.rpc.health.WATCH_SECONDS", 0.05)
    last = connection.open(WATCH, message(b""), end=True)
    while last not in connection.ended:
        connection.read(5.0)
    assert connection.received[last] == connection.received[streams[0]] > 0
    assert check_health(server.address, 10.0)


def test_a_connection_whose_calls_are_refused_again_and_again_waits_for_its_refusals_and_others_do_not(
    connect, server, monkeypatch
):
    for name, value in (("FREE_REFUSALS", 2), ("PAUSE", 1000.0), ("MAX_PAUSE", 1000.0)):
        monkeypatch.setattr(f"psserver.rpc.call_errors.{name}", value)
    flood, other = connect(server), connect(server)
    nobody = ms.Pull(sender=ms.Sender("nobody", 1), names=())
    for client in (flood, flood, other):
        with pytest.raises(errors.Unauthenticated):
            client.unary(nobody)
    call = flood.stub.Pull.future(pb.PullRequest(sender=pb.Sender(worker="nobody", incarnation=1)))
    with pytest.raises(errors.Unauthenticated):
        other.unary(nobody)
    with pytest.raises(grpc.FutureTimeoutError):
        call.result(timeout=0.1)
    call.cancel()
    assert flood.join().incarnation == 1, "what is not refused does not wait"


@pytest.mark.parametrize("role", [None, Role.OBSERVER, "of another job"])
def test_callers_without_a_token_or_the_right_role_wait_for_their_refusals_too(tmp_path, monkeypatch, role):
    for name, value in (("FREE_REFUSALS", 2), ("PAUSE", 1000.0), ("MAX_PAUSE", 1000.0)):
        monkeypatch.setattr(f"psserver.rpc.call_errors.{name}", value)
    tokens, credentials = token_credentials(tmp_path)
    _, others = token_credentials(tmp_path, "other")
    credentials |= {None: NO_CREDENTIALS, "of another job": others[Role.ADMIN]}
    with ServerThread(ServerConfig(token_file=tokens)) as server:
        flood, worker = Client(server.address, credentials[role]), Client(server.address, credentials[Role.WORKER])
        with flood.channel, worker.channel:
            for _ in range(2):
                with pytest.raises((errors.Unauthenticated, errors.PermissionDenied)):
                    flood.unary(ms.Join(worker="w0"))
            call = flood.stub.Join.future(pb.JoinRequest(worker="w0"))
            assert worker.join().incarnation == 1
            with pytest.raises(grpc.FutureTimeoutError):
                call.result(timeout=0.1)
            call.cancel()


def test_a_connection_without_calls_is_closed(connect, monkeypatch):
    options = dict(SERVER_OPTIONS)
    assert options["grpc.max_connection_idle_ms"] == 60_000
    monkeypatch.setattr(
        "psserver.rpc.server.SERVER_OPTIONS", tuple((options | {"grpc.max_connection_idle_ms": 100}).items())
    )
    with ServerThread() as server:
        idle = connect(server, RawConnection)
        with pytest.raises(ConnectionEnded):
            list(iter(lambda: idle.read(5.0), "never"))
        assert connect(server).join().incarnation == 1
