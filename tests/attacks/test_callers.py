"""Callers without a token, with a token of another job, or of the wrong role: refused before their request is read."""

import queue
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import grpc
import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc import access
from psserver.rpc.access import ROLES
from psserver.rpc.server import ServerThread
from pswire.errors import Malformed, PermissionDenied, Unauthenticated
from pswire.messages import Barrier, Gradient, Join, Pull, Push, Status
from pswire.network.channel import check_health
from pswire.optimizers import GradientDescent
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.security.token_files import Role, add_token, remove_token
from pswire.specs.consistency import Synchronous
from pswire.v1 import paramserver_pb2 as pb
from psworker.client.client import Client as WorkerClient
from psworker.transport.network_transport import NetworkTransport
from tests.support.commands import BOUND, wait_until
from tests.support.direct_connection import DirectConnection
from tests.support.servers import Client, Stream, frame_of, token_credentials

SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with tokens, and credentials of each role."""
    tokens, credentials = token_credentials(tmp_path_factory.mktemp("tokens"))
    with ServerThread(ServerConfig(token_file=tokens)) as server:
        yield server, credentials


@pytest.fixture
def changing(tmp_path, monkeypatch):
    """A server that looks at its token file for each call, that file, and credentials of each role."""
    monkeypatch.setattr(access, "RECHECK", 0.0)
    tokens, credentials = token_credentials(tmp_path)
    with ServerThread(ServerConfig(token_file=tokens, lease=6.0)) as server:
        yield server, tokens, credentials


def refused(server, credentials, method):
    """The error of a call whose request is no message: it would be `Malformed`, were it read."""
    client = Client(server.address, credentials)
    with client.channel:
        if method == "Transfer":
            return next(iter(client.send_frames([pb.Frame(chunk=b"no message")])))
        return client.send_bytes(method, b"\xff\xff no message")


@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods])
def test_a_caller_without_a_token_may_call_no_method_and_reads_what_to_do(guarded, method):
    with pytest.raises(Unauthenticated, match="this server requires a token: name a file that has one"):
        refused(guarded[0], NO_CREDENTIALS, method)


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer  ", "Basic {}", "{}", "Bearer {} ", "Bearer {}x"])
def test_a_header_that_is_no_bearer_token_is_refused(guarded, value):
    server, credentials = guarded
    value = value.format(credentials[Role.ADMIN].token(server.address))
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary("/paramserver.v1.ParameterServer/Status")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", metadata=(("authorization", value),), timeout=BOUND)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_each_role_may_call_its_methods_and_gets_an_error_that_names_the_role_for_the_others(guarded):
    server, credentials = guarded
    allowed, denied = {}, []
    for role in Role:
        client = Client(server.address, credentials[role])
        with client.channel:
            for method in ROLES:
                try:
                    refused(server, credentials[role], method)
                except PermissionDenied as error:
                    denied.append((f"the token {str(role)!r} has the role {role}, and {method} needs ", str(error)))
                    continue
                except (Malformed, Unauthenticated):  # it was read, or it is of no member
                    pass
                allowed.setdefault(role, set()).add(method)
    assert [text for text, error in denied if not error.startswith(text)] == []
    everything = {method.name for method in SERVICE.methods}
    assert allowed == {
        Role.OBSERVER: {"Status"},
        Role.WORKER: everything - {"Reset", "Intervene"},
        Role.ADMIN: everything,
    }


def test_the_table_of_roles_has_all_methods_and_a_transfer_carries_calls_of_workers_only():
    assert ROLES.keys() == {method.name for method in SERVICE.methods}
    pieces = {one.message_type.name for one in pb.Frame.DESCRIPTOR.oneofs_by_name["piece"].fields if one.message_type}
    carried = {name.removesuffix("Request") for name in pieces if name.endswith("Request")} & ROLES.keys()
    assert "Push" in carried
    assert {ROLES[name] for name in carried} == {ROLES["Transfer"]}


@pytest.mark.slow
def test_a_worker_trains_and_a_health_check_needs_no_token(guarded):
    server, credentials = guarded
    assert check_health(server.address, BOUND)
    client = Client(server.address, credentials[Role.WORKER])
    with client.channel:
        sender = client.join("honest")
        client.register(sender, GradientDescent(1.0), w=np.ones(3, np.float32))
        assert client.value(sender, "w").tolist() == [1, 1, 1]
        assert client.status().workers[0].name == "honest"


@pytest.mark.parametrize("method", ["Transfer", "Push"])
def test_a_call_is_refused_while_its_request_never_comes(guarded, method):
    requests = queue.SimpleQueue()
    with grpc.insecure_channel(guarded[0].address) as channel:
        stream = channel.stream_stream(f"/paramserver.v1.ParameterServer/{method}")
        call = stream(iter(requests.get, None), timeout=BOUND)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        requests.put(None)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_token_that_was_added_is_taken_and_one_that_was_removed_is_refused_without_a_restart(changing, tmp_path):
    server, tokens, credentials = changing
    worker = Client(server.address, credentials[Role.WORKER])
    with worker.channel:
        worker.join("w0")
        late = tmp_path / "late.token"
        late.touch(0o600)
        late.write_text(add_token(tokens, "late", Role.WORKER))
        client = Client(server.address, Credentials(token_file=str(late)))
        with client.channel:
            client.join("w1")
        remove_token(tokens, Role.WORKER)
        with pytest.raises(Unauthenticated, match="was removed"):
            worker.unary(Join(worker="w0"))


@pytest.mark.parametrize("reloads", [0, 1, 3])
def test_a_stream_ends_whose_token_was_removed_however_often_the_file_changed_before(changing, reloads):
    server, tokens, credentials = changing
    worker, admin = (Client(server.address, credentials[role]) for role in (Role.WORKER, Role.ADMIN))
    with worker.channel, admin.channel:
        streams = {}
        for client, name in ((worker, "w0"), (admin, "w1")):
            sender = client.join(name)
            client.register(sender, GradientDescent(1.0), w=np.ones(3, np.float32))
            streams[name] = stream, pull = Stream(client), frame_of(Pull(sender=sender, names=("w",)))
            stream.send(pull)
            assert stream.answer().values[0].array.tolist() == [1, 1, 1]
        for number in range(reloads):
            add_token(tokens, f"other-{number}", Role.OBSERVER)
            admin.status()  # any call makes the server look at the file
        remove_token(tokens, Role.WORKER)
        admin.status()
        stream, pull = streams["w1"]
        stream.send(pull)
        assert stream.answer().values[0].array.tolist() == [1, 1, 1]
        stream.send(None)
        stream, pull = streams["w0"]
        stream.send(pull)
        with pytest.raises(Unauthenticated, match="was removed"):
            stream.answer()


@pytest.mark.parametrize("direct", [False, True], ids=["gRPC", "direct"])
def test_a_stream_that_sends_nothing_ends_with_its_token_although_nobody_calls(changing, direct):
    server, tokens, credentials = changing
    worker = Client(server.address, credentials[Role.WORKER])
    with worker.channel:
        sender = worker.join("w0")
        worker.register(sender, GradientDescent(1.0), w=np.ones(3, np.float32))
        stream, pull = Stream(worker), Pull(sender=sender, names=("w",))
        if direct:
            stream.close()
            stream = DirectConnection(worker).greet()
        stream.send(pull if direct else frame_of(pull))
        assert stream.answer().values[0].array.tolist() == [1, 1, 1]
        remove_token(tokens, Role.WORKER)
        with pytest.raises(Unauthenticated, match="was removed"):
            stream.answer()
        stream.close()


def pushed_directly(client, sender):
    stream = DirectConnection(client).greet()
    with closing(stream):
        stream.send(Push(sender=sender, sequence=1, gradients=(GRADIENT,)))
        return stream.answer()


GRADIENT = Gradient("w", 0, np.ones(3, np.float32))
WAITING = {
    "barrier": lambda client, sender: client.unary(Barrier(sender, 1)),
    "held push": lambda client, sender: client.unary(Push(sender=sender, sequence=1, gradients=(GRADIENT,))),
    "held push on a stream": lambda client, sender: client.transfer(
        Push(sender=sender, sequence=1, gradients=(GRADIENT,))
    ),
    "held push on a direct connection": pushed_directly,
}


@pytest.mark.parametrize("wait", WAITING.values(), ids=WAITING)
def test_a_call_that_waits_for_other_workers_ends_with_its_token_although_nobody_calls(tmp_path, monkeypatch, wait):
    monkeypatch.setattr(access, "RECHECK", 0.0)
    monkeypatch.setattr("psserver.runtime.clock.TICK", 0.05)
    tokens, credentials = token_credentials(tmp_path)
    config = ServerConfig(token_file=tokens, consistency=Synchronous(2), lease=BOUND)
    with ServerThread(config) as server, ThreadPoolExecutor(1) as thread:
        worker, admin = (Client(server.address, credentials[role]) for role in (Role.WORKER, Role.ADMIN))
        with worker.channel, admin.channel:
            sender = worker.join("w0")
            worker.register(sender, GradientDescent(1.0), w=np.ones(3, np.float32))
            admin.join("w1")
            call = thread.submit(wait, worker, sender)
            wait_until(lambda: admin.status().workers[0].waiting_for)
            remove_token(tokens, Role.WORKER)
            with pytest.raises(Unauthenticated, match="was removed"):
                call.result()


def test_a_caller_whose_token_has_another_role_now_is_no_longer_valid(tmp_path, monkeypatch):
    monkeypatch.setattr(access, "RECHECK", 0.0)
    tokens = tmp_path / "tokens"
    header = [("authorization", f"Bearer {add_token(tokens, 'alice', Role.WORKER)}")]
    known = access.Access(tokens)
    caller = known.caller(header)
    tokens.write_text(tokens.read_text().replace("token alice worker", "token bob worker"))
    assert known.caller(header) is caller
    assert (caller.name, caller.valid) == ("bob", True)
    tokens.write_text(tokens.read_text().replace("token bob worker", "token bob observer"))
    assert known.caller(header).role is Role.OBSERVER
    assert not caller.valid


def test_a_changed_token_file_that_cannot_be_used_leaves_the_tokens_of_before_and_is_logged(changing, caplog):
    server, tokens, credentials = changing
    client = Client(server.address, credentials[Role.OBSERVER])
    with client.channel:
        tokens.write_text("nonsense\n")
        assert client.unary(Status()).shard == 0
        assert client.unary(Status()).shard == 0
    assert [text for text in caplog.messages if "line 1 of" in text and "the previous tokens stay valid" in text]
    assert len([text for text in caplog.messages if "line 1 of" in text]) == 1


def test_a_worker_with_a_wrong_token_ends_at_once_with_the_reason_and_does_not_try_again(guarded, tmp_path):
    _, other = token_credentials(tmp_path)
    with (
        closing(NetworkTransport([guarded[0].address], other[Role.WORKER])) as transport,
        pytest.raises(Unauthenticated, match="is of another job"),
    ):
        WorkerClient(transport, "w0", BOUND).join()
