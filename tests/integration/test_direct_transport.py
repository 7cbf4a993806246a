"""Calls over direct connections, and over gRPC where these are not reached; no call is lost or made twice."""

import gc
import itertools
import logging
import os
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.direct.connection import DirectConnection
from psserver.rpc.direct.listener import DirectSockets
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.optimizers import GradientDescent
from pswire.security.credentials import NO_CREDENTIALS
from pswire.security.token_files import Role
from pswire.specs.consistency import Synchronous
from pswire.system import interrupts
from pswire.tensors import direct
from pswire.tensors.transport import MAX_INLINE_MESSAGE
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport import connection
from psworker.transport.direct_stream import NotReached, open_direct
from psworker.transport.network_transport import NetworkTransport
from tests.support.combinations import few_fast
from tests.support.commands import BOUND, free_address, wait_until
from tests.support.cutting_proxy import CuttingProxy
from tests.support.servers import Certificates, token_credentials
from tests.support.transports import streams

pytestmark = pytest.mark.skipif(streams() != "direct", reason="this run is over gRPC")

SMALL = np.zeros(500, np.float32)
LARGE = np.zeros(MAX_INLINE_MESSAGE // 4 + 1000, np.float32)
STREAMS = {"shared_memory": False}


class Worker:
    """A member that pushes gradients of -1 for one variable, and gets its value."""

    def __init__(self, transport, value=SMALL, name="w0"):
        self.transport, self.value, self.sequence = transport, value, itertools.count(1)
        self.sender = ms.Sender(name, self.ask(ms.Join(worker=name, name_key=b"key")).incarnation)
        declared = ms.Declaration(TensorSpec.of("v", value), value, GradientDescent(1.0))
        self.ask(ms.Register(sender=self.sender, declarations=(declared,)))

    def ask(self, message, timeout=BOUND):
        return self.transport.call(0, message, timeout).result()

    def push(self, gradient=None, timeout=BOUND):
        gradient = gradient or ms.Gradient("v", 0, np.full_like(self.value, -1))
        push = ms.Push(sender=self.sender, sequence=next(self.sequence), gradients=(gradient,), pull=("v",))
        return self.ask(push, timeout).values[0].array

    @property
    def used(self):
        return self.transport.tensor_transport(0)

    @property
    def sockets(self):
        """Those of the idle streams."""
        return [one._socket for one in self.transport._connections[0]._idle if one.name == "direct"]


@contextmanager
def job(*, config=(), credentials=NO_CREDENTIALS, value=SMALL, **options):
    """A server, and a worker of it over sockets unless options say otherwise."""
    with (
        ServerThread(ServerConfig(**{"grace": 0.0, "lease": BOUND} | dict(config))) as server,
        closing(NetworkTransport([server.address], credentials, **STREAMS | options)) as transport,
    ):
        yield Worker(transport, value)


@pytest.fixture
def announced(monkeypatch):
    """A port that servers announce instead of their own, which is `announced.real`."""
    found = SimpleNamespace(port=int(free_address().rpartition(":")[2]), real="")

    class Announced(DirectSockets):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            found.real = f"127.0.0.1:{self.where.port}"
            self.where = ms.DirectAddress(found.port)

    monkeypatch.setattr("psserver.rpc.server.DirectSockets", Announced)
    return found


@contextmanager
def answering(port, answer):
    """Whatever listens at a port: it sends the same bytes to all, and ends the connection if there are none."""

    def serve():
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            taken.append(one)
            one.sendall(answer or b"")
            if answer is None:
                one.close()

    taken = []
    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    for one in taken:
        one.close()


@contextmanager
def nothing(port, answer):
    yield


PORTS = {
    "closed": (nothing, None, "Connection refused"),
    "silent": (answering, b"", "timed out"),
    "another version": (answering, b"paramserver/2\r\n\0", "another version of it: b'paramserver/2"),
    "another protocol": (answering, b"HTTP/1.1 400 Bad Request\r\n\r\n", "another protocol.*HTTP/1.1"),
    "closes": (answering, None, "another protocol, or another version of it: b''"),
}


@pytest.mark.parametrize(("listens", "answer", "reason"), few_fast(PORTS.values(), 3, slow=2, ids=PORTS))
def test_calls_go_by_grpc_while_the_direct_port_is_not_reached_and_over_it_when_it_is(
    announced, monkeypatch, caplog, listens, answer, reason
):
    monkeypatch.setattr("psworker.transport.direct_stream.OPEN_SECONDS", 0.05)
    monkeypatch.setattr(connection, "OPEN_SECONDS", 0.05)
    monkeypatch.setattr(connection, "DIRECT_PAUSE", 0.0)
    caplog.set_level(logging.INFO, connection.__name__)
    with listens(announced.port, answer), job() as worker:
        for step in range(1, 4):
            assert (worker.push() == step).all()
            worker.ask(ms.Renew(sender=worker.sender))
        assert worker.used == "gRPC"
        [text] = [text for text in caplog.messages if "direct port" in text]
        assert re.search(f"the direct port {announced.port} of the server at .* was not reached.*{reason}", text)
    with job() as worker:
        assert (worker.push() == 1).all()
        with CuttingProxy(announced.real, port=announced.port) as proxy:
            assert (worker.push() == 2).all()
            assert worker.used == "direct"
            assert proxy.to_server > SMALL.nbytes
        assert (worker.push() == 3).all()
        assert worker.used == "gRPC"


def test_a_port_that_is_never_reached_is_tried_less_and_less_often(announced, monkeypatch):
    now, tries = [0.0], []
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def not_reached(*args, **options):
        tries.append(now[0])
        raise NotReached("no route")

    monkeypatch.setattr(connection, "open_direct", not_reached)
    with job() as worker:
        for seconds in range(0, 1000, 5):
            now[0] = float(seconds)
            worker.push()
    assert tries == [0, 10, 30, 70, 150, 310, 630]


@pytest.mark.parametrize(
    ("config", "reason"),
    [((), "Connection refused"), ((("direct_port", None),), "it has announced none")],
    ids=["closed", "off"],
)
def test_a_worker_that_wants_direct_connections_alone_is_told_what_to_do(request, config, reason):
    if not config:
        request.getfixturevalue("announced")
    advice = f"was not reached: {reason}; see --direct-port of psserver serve, or use --transport auto"
    with pytest.raises(errors.Unavailable, match=advice), job(transport="direct", config=config):
        pass


def test_grpc_alone_opens_no_direct_connection_and_a_server_without_serves_the_rest(monkeypatch):
    with job(config=(("direct_port", None),)) as worker:
        assert ((worker.push() == 1).all(), worker.used) == (True, "gRPC")
    monkeypatch.setattr(connection, "open_direct", lambda *_, **__: pytest.fail("opened"))
    with job(transport="grpc") as worker:
        worker.ask(ms.Renew(sender=worker.sender))
        assert ((worker.push() == 1).all(), worker.used) == (True, "gRPC")


def test_on_this_host_it_is_a_unix_socket_where_memory_is_shared_and_else_tcp(tmp_path):
    unix = (("bind", f"unix:{tmp_path}/s"),)
    for config, shared, family in (
        ((), False, socket.AF_INET),
        ((), True, socket.AF_UNIX),
        (unix, True, socket.AF_UNIX),
        ((("bind", "[::1]:0"),), False, socket.AF_INET6),
    ):
        with job(config=config, shared_memory=shared) as worker:
            assert (worker.push() == 1).all()
            assert {one.family for one in worker.sockets} == {family}
    with job(config=unix) as worker:
        assert ((worker.push() == 1).all(), worker.used) == (True, "gRPC")


def test_a_worker_follows_a_server_that_comes_back_with_another_direct_port(
    tmp_path, frequent_heartbeats, servers_stop_at_once
):
    first, second = (int(free_address().rpartition(":")[2]) for _ in range(2))
    options = {"bind": free_address(), "checkpoint_dir": tmp_path, "journal": True, "lease": 3.0}
    server = ServerThread(ServerConfig(**options, direct_port=first)).__enter__()
    with ps.collection(), ps.session(server.address, shared_memory=False, timeout=BOUND, progress="off") as session:
        x, steps = ps.Variable(SMALL, name="x"), itertools.count(1)
        transport = session._client._calls.transport

        def step():
            ps.GradientDescent(1.0).apply_gradients([(np.ones_like(SMALL), x)])
            assert (x.value == -next(steps)).all()
            return transport._connections[0]._direct.port, transport.tensor_transport(0)

        assert step() == (first, "direct")
        server.__exit__(None, None, None)
        server = ServerThread(ServerConfig(**options, direct_port=second)).__enter__()
        wait_until(lambda: step() == (second, "direct"))
        assert session._client.membership.rejoins == 0
    server.__exit__(None, None, None)


# --- broken connections and late answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cuts",
    [{"cuts_to_server": [LARGE.nbytes * step // 2 for step in (3, 6, 9)]}, {"after": [LARGE.nbytes * 3 // 2] * 1}],
    ids=["pushes", "answers"],
)
def test_a_push_whose_connection_is_cut_is_applied_once(announced, caplog, cuts):
    with ServerThread(ServerConfig(lease=BOUND)) as server, CuttingProxy(announced.real, port=announced.port, **cuts):
        session = ps.session(server.address, shared_memory=False, transport="direct", timeout=BOUND, progress="off")
        with ps.collection(), session:
            x = ps.Variable(LARGE, name="x")
            for step in range(1, 7):
                ps.GradientDescent(1.0).apply_gradients([(np.ones_like(LARGE), x)])
                assert (x.value == -step).all()
            assert session.dropped == 0
    assert [one.version for one in server.report.variables] == [6]
    gc.collect()  # of tasks that have failed, which are logged then
    assert [text for text in caplog.messages if "never retrieved" in text] == []


def test_a_push_that_its_header_refuses_while_it_is_sent_ends_with_the_reason():
    with job(value=LARGE) as worker:
        huge = np.zeros(4 * LARGE.size, np.float32)
        for _ in range(3):
            with pytest.raises(errors.UnknownVariable, match="nowhere"):
                worker.push(ms.Gradient("nowhere", 0, huge))
        assert (worker.push() == 1).all()
        assert worker.used == "direct"


@pytest.mark.parametrize(("value", "more"), [(SMALL, 4), (SMALL, -4), (LARGE, 4), (LARGE, -4)])
def test_an_answer_with_other_elements_than_its_values_need_is_refused_and_its_connection_ends(
    monkeypatch, value, more
):
    async def wrong(self, header, sender, deadline):
        monkeypatch.setattr(DirectConnection, "send", send)
        data = [memoryview(b"".join(sender.data)[:more] if more < 0 else b"".join([*sender.data, bytes(more)]))]
        await self._write(direct.message(header, data), deadline)

    send = DirectConnection.send
    with job(value=value) as worker:
        worker.push()
        monkeypatch.setattr(DirectConnection, "send", wrong)
        with pytest.raises(errors.Malformed, match="bytes"):
            worker.push()
        assert not worker.sockets
        assert (worker.push() == 3).all()


def test_bytes_behind_an_answer_are_not_the_next_one(monkeypatch):
    async def twice(self, header, sender, deadline):
        monkeypatch.setattr(DirectConnection, "send", send)
        await self._write([b"".join(direct.message(header, sender.data)) * 2], deadline)

    send = DirectConnection.send
    with job() as worker:
        monkeypatch.setattr(DirectConnection, "send", twice)
        assert (worker.push() == 1).all(), "as when a server ends a stream behind an answer that nobody had read"
        assert (worker.push() == 2).all()


@pytest.mark.parametrize("value", [SMALL, LARGE], ids=["small", "large"])
def test_late_calls_time_out_and_closing_ends_those_that_wait_and_refuses_others(value):
    with job(config=(("consistency", Synchronous(2)),), value=value) as worker:
        with pytest.raises(errors.TimedOut, match=r"the server at 127\.0\.0\.1:\d+ did not answer in time"):
            worker.push(timeout=0.1)
        assert not worker.sockets, "an answer that is late must be no other call's"
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(worker.push)
            wait_until(lambda: worker.ask(ms.Status()).workers[0].waiting_for)
            worker.transport.close()
            with pytest.raises(errors.Unavailable, match="was interrupted"):
                call.result()
        with pytest.raises(errors.InternalError, match="is possible after close"):
            worker.push()


@pytest.mark.parametrize("value", [SMALL, LARGE], ids=["small", "large"])
def test_a_signal_ends_a_call_whose_answer_does_not_come(monkeypatch, value):
    class Interrupted(BaseException):
        pass

    monkeypatch.setattr(interrupts, "GRACE", 0.0)
    before = signal.signal(signal.SIGUSR1, lambda *_: interrupts.raise_or_defer(Interrupted()))
    try:
        with job(config=(("consistency", Synchronous(2)),), value=value) as worker, ThreadPoolExecutor(1) as pool:

            def interrupt():
                wait_until(lambda: worker.ask(ms.Status()).workers[0].waiting_for)
                os.kill(os.getpid(), signal.SIGUSR1)

            done = pool.submit(interrupt)
            with pytest.raises(Interrupted):
                worker.push()
            done.result()
            worker.transport._connections[0].receivers.shutdown(wait=True)  # no thread waits for the rest
    finally:
        signal.signal(signal.SIGUSR1, before)
        interrupts.raise_deferred()


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return [Certificates(tmp_path_factory.mktemp("certificates") / name) for name in ("job", "other")]


class Tapped(CuttingProxy):
    """A proxy that keeps what passes."""

    seen = b""

    async def _to_server(self, reader, writer):
        await super()._to_server(self._tapped(reader), writer)

    async def _to_worker(self, reader, writer):
        await super()._to_worker(self._tapped(reader), writer)

    def _tapped(self, reader):
        async def read(nbytes):
            data = await reader.read(nbytes)
            self.seen += data
            return data

        return SimpleNamespace(read=read)


@pytest.mark.parametrize("kind", few_fast(["mutual", "", "server"], 2, ids=["certificates of clients", "none", "TLS"]))
def test_with_tls_nothing_passes_in_plaintext(announced, certificates, tmp_path, kind):
    tokens, roles = token_credentials(tmp_path)
    token, config = roles[Role.WORKER].token("127.0.0.1:1"), {"token_file": tokens}
    credentials = roles[Role.WORKER]
    if kind:
        config |= getattr(certificates[0], kind)
        credentials = certificates[0].client(certificate=kind == "mutual", token_file=credentials.token_file)
    pattern = np.frombuffer(b"abcdefgh" * 250, np.float32).copy()
    with (
        ServerThread(ServerConfig(lease=BOUND, **config)) as server,
        Tapped(announced.real, port=announced.port) as proxy,
        closing(NetworkTransport([server.address], credentials, transport="direct", **STREAMS)) as transport,
    ):
        worker = Worker(transport, pattern)
        worker.push()
        worker.push(ms.Gradient("v", 0, 0 * pattern))
        assert worker.used == "direct"
    assert len(proxy.seen) > 3 * pattern.nbytes
    plain = [part in proxy.seen for part in (token.encode(), direct.GREETING, b"psd1", b"abcdefgh" * 2)]
    assert plain == [not kind] * 4


WRONG = {
    "another CA": ("server", lambda job, other: other.client(), "CERTIFICATE_VERIFY_FAILED"),
    "no TLS": ("server", lambda job, other: NO_CREDENTIALS, "another protocol|reset|timed out"),
    "TLS to a server without": ("", lambda job, other: job.client(), "SSL|EOF|reset|timed out"),
    "no certificate": ("mutual", lambda job, other: job.client(), "CERTIFICATE_REQUIRED|certificate required"),
}


@pytest.mark.parametrize(("kind", "credentials", "reason"), few_fast(WRONG.values(), 2, slow=2, ids=WRONG))
def test_a_direct_port_with_other_security_is_not_reached_and_gets_no_token(certificates, kind, credentials, reason):
    config = ServerConfig(grace=0.0, **getattr(certificates[0], kind) if kind else {})
    hello, found = pb.Hello(member=b"secret" * 9), []
    with ServerThread(config) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pb.Hello, "FromString", found.append)
        own = certificates[0].client(certificate=True) if kind else NO_CREDENTIALS
        with closing(NetworkTransport([server.address], own, transport="grpc", **STREAMS)) as transport:
            where = transport.call(0, ms.Join(worker="w0"), BOUND).result().direct
        with pytest.raises(NotReached, match=reason):
            open_direct(server.address, where, credentials(*certificates), hello, 0.5, unix=False)
    assert found == []
