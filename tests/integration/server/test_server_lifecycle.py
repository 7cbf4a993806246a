"""Start and stop of a server: port, health, reflection, calls under way, and no thread left."""

import queue
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
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire.channel import check_health, error_from
from pswire.codec import encode
from pswire.messages import Gradient, Join, Leave, Pull, Push, QueueSpec, Take
from pswire.tensors.transport import InlineSender
from pswire.v1 import paramserver_pb2 as pb
from tests.server_client import frames_of

STATUS = health_pb2.HealthCheckResponse
SERVING, NOT_SERVING, UNKNOWN = STATUS.SERVING, STATUS.NOT_SERVING, STATUS.SERVICE_UNKNOWN
QUEUE = QueueSpec("train", size=10, block=10, epochs=1)


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("psserver")] == []


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "unix:{folder}/new", "unix:{folder}/left-behind"])
def test_a_server_answers_at_a_free_port_and_at_a_socket_also_one_that_a_killed_server_left(bind, connect, tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/left-behind")
    with ServerThread(ServerConfig(bind.format(folder=tmp_path))) as server:
        assert server.address.rpartition(":")[0] == bind.rpartition(":")[0]
        assert not server.address.endswith(":0")
        assert connect(server).unary(Join("w0")).number == 0


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


def test_a_server_that_does_not_linger_ends_by_itself_when_the_job_is_done(connect, monkeypatch, caplog):
    monkeypatch.setattr(psserver.runtime.clock, "TICK", 0.01)
    with ServerThread(ServerConfig(linger=0.0)) as server:
        client = connect(server)
        watched = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert next(watched).status == SERVING
        sender = client.join("w0")
        client.unary(Push(sender, 1, ()))
        client.unary(Leave(sender))
        assert [answer.status for answer in watched] == [NOT_SERVING]
        assert [(worker.state, worker.steps) for worker in server.report.workers] == [("left", 1)]
    assert caplog.messages == [
        "worker 'w0' joined (number 0, incarnation 1)",
        "worker 'w0' finished after 1 step",
        "the job is done, and no worker has joined for 0 s",
        "stopping: calls in progress get 5 s",
    ]


def test_a_server_that_does_not_linger_ends_by_itself_when_all_have_failed(connect, monkeypatch, caplog):
    monkeypatch.setattr(psserver.runtime.clock, "TICK", 0.01)
    with ServerThread(ServerConfig(linger=0.0, lease=0.03)) as server:
        connect(server).join("w0")
        assert [worker.state for worker in server.report.workers] == ["lost"]
    assert caplog.messages == [
        "worker 'w0' joined (number 0, incarnation 1)",
        "worker 'w0' was silent for 0.03 s: its lease has expired",
        "no worker is left of 1 worker, and none has finished the job: the server ends in 0.12 s unless one joins",
        "no worker has finished the job, and none has joined for 0.12 s",
        "stopping: calls in progress get 5 s",
    ]
    caplog.clear()


@pytest.mark.parametrize("service", ["", "paramserver.v1.ParameterServer"])
def test_health_is_serving_until_the_server_stops_and_that_of_other_services_unknown(service, connect):
    with ServerThread(ServerConfig(grace=60.0)) as server:
        assert check_health(server.address, timeout=30)
        stub = health_pb2_grpc.HealthStub(connect(server).channel)
        request, other = (health_pb2.HealthCheckRequest(service=name) for name in (service, "other"))
        assert stub.Check(request, timeout=30).status == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(other, timeout=30)
        watched, unknown = stub.Watch(request, timeout=30), stub.Watch(other, timeout=30)
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


def test_a_pending_call_gets_the_error_that_the_server_stops(connect):
    with ServerThread() as server:
        client = connect(server)
        holder, waiter = client.join("w0"), client.join("w1")
        client.unary(Take(holder, QUEUE))
        pending = client.stub.Take.future(encode(Take(waiter, QUEUE), InlineSender()), timeout=30)
        left = {}
        while not left or left["w1"] <= left["w0"]:  # the Take renews the lease when it is pending
            left = {worker.name: worker.lease_left for worker in client.status().workers}
    error = error_from(pending.exception(), server.address)
    assert (type(error), error.retry) == (errors.Unavailable, True)
    assert "the server is stopping" in str(error)


def test_a_stream_between_two_calls_does_not_hold_up_the_stop(connect):
    pieces = queue.Queue()
    with ServerThread(ServerConfig(grace=1000.0)) as server:
        client = connect(server)
        sender = client.join()
        pieces.put(*frames_of(Pull(sender, ())))
        answers = client.send_frames(iter(pieces.get, None))
        assert next(answers).global_step == 0
    with pytest.raises(errors.Unavailable, match="the server is stopping"):
        next(answers)
    pieces.put(None)


@pytest.fixture
def slow_transfer(connect):
    """A function that starts a push of 4 MiB whose last chunk is sent once `go` is set; its call."""
    array, sent = np.ones(1 << 19), threading.Event()

    def start(server, go):
        client = connect(server)
        sender = client.join()
        client.register(sender, w=np.zeros_like(array))
        frames = frames_of(Push(sender, 1, (Gradient("w", 0, array),)))

        def slowly():
            yield from frames[:-1]
            sent.set()
            assert go.wait(30)
            yield frames[-1]

        call = client.stub.Transfer(slowly(), timeout=30)
        assert sent.wait(30)
        client.status()
        return client, call

    return start


def test_a_transfer_under_way_is_finished_within_the_grace(slow_transfer):
    stopping = threading.Event()
    with ServerThread(ServerConfig(grace=30.0)) as server:
        client, call = slow_transfer(server, stopping)
        watched = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert next(watched).status == SERVING
        stopper = threading.Thread(target=server.__exit__, args=(None, None, None))
        stopper.start()
        assert next(watched).status == NOT_SERVING
        watched.cancel()
        stopping.set()
        assert next(call).pushed.outcome == pb.OUTCOME_APPLIED
        with pytest.raises(grpc.RpcError, match="the server is stopping"):
            next(call)
        stopper.join()
    assert server.report.global_step == 1


def test_a_transfer_that_outlasts_the_grace_is_cut_off_and_nothing_of_it_applied(slow_transfer):
    stopped = threading.Event()
    with ServerThread(ServerConfig(grace=0.0)) as server:
        _, call = slow_transfer(server, stopped)
    stopped.set()
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert type(error_from(caught.value, server.address)) is errors.Unavailable
    assert server.report.global_step == 0


def test_a_tick_that_fails_is_logged_and_the_next_one_works(connect, monkeypatch, caplog):
    failures = iter([ZeroDivisionError("once")])
    expire = psserver.core.members.membership.Membership.expire

    def fail_once(self, now):
        for failure in failures:
            raise failure
        return expire(self, now)

    monkeypatch.setattr(psserver.runtime.clock, "TICK", 0.01)
    monkeypatch.setattr(psserver.core.members.membership.Membership, "expire", fail_once)
    with ServerThread(ServerConfig(lease=0.02)) as server:
        client = connect(server)
        client.join()
        while client.status().workers[0].state == "live":
            pass
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info[0] is ZeroDivisionError
    caplog.clear()


def test_an_error_in_the_block_is_raised():
    with pytest.raises(ZeroDivisionError), ServerThread():
        raise ZeroDivisionError
