"""Start and stop of a server: port, health, reflection, calls in progress, and no thread left."""

import socket
import sys
import threading

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import psserver.runtime.clock
from psserver.config import ServerConfig
from psserver.core.members.membership import Membership
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.channel import check_health
from pswire.specs.consistency import Synchronous
from tests.server_client import Stream, frames_of

STATUS = health_pb2.HealthCheckResponse
SERVING, NOT_SERVING, UNKNOWN = STATUS.SERVING, STATUS.NOT_SERVING, STATUS.SERVICE_UNKNOWN
ALL = health_pb2.HealthCheckRequest()


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("psserver")] == []


@pytest.fixture
def short_ticks(monkeypatch):
    monkeypatch.setattr(psserver.runtime.clock, "TICK", 0.01)


def health_of(client):
    return health_pb2_grpc.HealthStub(client.channel)


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "unix:{folder}/new", "unix:{folder}/left-behind"])
def test_a_server_answers_at_a_free_port_and_at_a_socket_also_one_that_a_killed_server_left(bind, connect, tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/left-behind")
    with ServerThread(ServerConfig(bind.format(folder=tmp_path))) as server:
        assert server.address.rpartition(":")[0] == bind.format(folder=tmp_path).rpartition(":")[0]
        assert not server.address.endswith(":0")
        assert connect(server).unary(ms.Join("w0")).number == 0


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
            with pytest.raises(errors.ConfigurationError) as caught, ServerThread(ServerConfig(address)):
                pass
            advice = "choose another address, or port 0 for a free port"
            assert str(caught.value) == f"cannot listen on {address}: {reason}; {advice}"
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("short_ticks")
def test_a_server_that_does_not_linger_ends_by_itself_when_the_job_is_done(connect, caplog):
    with ServerThread(ServerConfig(linger=0.0)) as server:
        client = connect(server)
        watched = health_of(client).Watch(ALL, timeout=30)
        assert next(watched).status == SERVING
        sender = client.join("w0")
        client.unary(ms.Push(sender, 1, ()))
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
        health = health_of(connect(server))
        request, other = (health_pb2.HealthCheckRequest(service=name) for name in (service, "other"))
        assert health.Check(request, timeout=30).status == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(other, timeout=30)
        watched, unknown = health.Watch(request, timeout=30), health.Watch(other, timeout=30)
        assert (next(watched).status, next(unknown).status) == (SERVING, UNKNOWN)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert [[answer.status for answer in watched], list(unknown)] == [[NOT_SERVING], []]


def test_reflection_lists_the_services_if_it_is_on_and_needs_its_package(connect, monkeypatch):
    with ServerThread() as server, pytest.raises(grpc.RpcError) as caught:
        services_of(connect(server))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with ServerThread(ServerConfig(reflection=True)) as server:
        assert {"paramserver.v1.ParameterServer", "grpc.health.v1.Health"} <= services_of(connect(server))
    monkeypatch.setitem(sys.modules, "grpc_reflection.v1alpha", None)
    extra = pytest.raises(errors.ConfigurationError, match=r"pip install 'paramserver\[reflection\]'")
    with extra, ServerThread(ServerConfig(reflection=True)):
        pass


def services_of(client):
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=30)
    return {service.name for service in answer.list_services_response.service}


def test_a_stream_between_two_calls_and_one_whose_call_is_pending_end_at_once_when_the_server_stops(connect):
    with ServerThread(ServerConfig(grace=1000.0, consistency=Synchronous(2))) as server:
        client = connect(server)
        sender, idle, pending = client.join(), Stream(client), Stream(client)
        idle.send(*frames_of(ms.Pull(sender, ())))
        assert idle.answer().global_step == 0
        pending.send(*frames_of(ms.Push(sender, 1, ())))
        while not client.status().workers[0].waiting_for:
            pass
    for stream in (idle, pending):
        with pytest.raises(errors.Unavailable, match="the server is stopping") as caught:
            stream.answer()
        assert caught.value.retry
        stream.close()


def slow_transfer(client):
    """A push of 4 MiB whose last chunk is still to be sent: its stream, and that chunk."""
    array, stream = np.ones(1 << 19), Stream(client)
    sender = client.join()
    client.register(sender, w=np.zeros_like(array))
    *frames, last = frames_of(ms.Push(sender, 1, (ms.Gradient("w", 0, array),)))
    stream.send(*frames)
    stream.flush()
    client.status()
    return stream, last


def test_a_transfer_in_progress_is_finished_within_the_grace(connect):
    with ServerThread(ServerConfig(grace=30.0)) as server:
        client = connect(server)
        stream, last = slow_transfer(client)
        watched = health_of(client).Watch(ALL, timeout=30)
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


@pytest.mark.usefixtures("short_ticks")
def test_a_tick_that_fails_is_logged_and_the_next_one_works(connect, monkeypatch, caplog):
    failures, expire = [ZeroDivisionError("once")], Membership.expire

    def fail_once(self, now):
        if failures:
            raise failures.pop()
        return expire(self, now)

    monkeypatch.setattr(Membership, "expire", fail_once)
    with ServerThread(ServerConfig(lease=0.02)) as server:
        client = connect(server)
        client.join()
        while client.status().workers[0].state == "live":
            pass
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info[0] is ZeroDivisionError
    caplog.clear()
