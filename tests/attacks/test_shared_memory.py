"""Attacks on a server through the memory that it shares: it lives, serves others on, and gets everything back."""

import ctypes
import errno
import os
import re
import resource
import signal
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.rpc.shared_segment_socket import THREADS
from psserver.rpc.streams import STREAMS_OF_A_MEMBER
from pswire import errors
from pswire import messages as ms
from pswire.codec import to_frame
from pswire.optimizers import GradientDescent
from pswire.tensors import shared_segments
from pswire.tensors.shared_memory import Region
from pswire.tensors.shared_segments import DONE, MAX_SEGMENTS, NotShared, allocate_and_map, socket_path
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport.network_transport import NetworkTransport
from psworker.transport.shared_memory import fetch_segment
from tests.support.commands import BOUND, Command, environment
from tests.support.files import mapped_segments
from tests.support.servers import NAME_KEY, Client, Stream

LARGE = np.ones((1 << 18,), np.float32)
MB = 1 << 20
PAGE = resource.getpagesize()
PUNCH_HOLE, KEEP_SIZE = 2, 1

SERVER = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from psserver.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """A `psserver serve` that may have 1,024 open files."""
    path = tmp_path_factory.mktemp("server") / "server"
    process = Command(path, "-c", SERVER, "serve", "--lease", "60", env=environment())
    process.wait_for("listening on")
    yield process
    assert process.end(signal.SIGTERM)[0] == 0
    assert [line for line in process.err if "Traceback" in line] == []


class Target:
    """The server of an attack, and what the system says of it."""

    def __init__(self, process):
        self.address, self._pid = process.address, process.popen.pid

    def mapped(self):
        return len(mapped_segments(self._pid))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self._pid}/fd"))

    def wait_until(self, condition):
        end = time.monotonic() + BOUND
        while not condition():
            assert time.monotonic() < end, (self.mapped(), self.descriptors())
            time.sleep(0.01)

    def train(self):
        """An honest worker takes part, with shared memory."""
        with closing(NetworkTransport([self.address])) as transport:
            joined = transport.call(0, ms.Join(worker="honest", name_key=NAME_KEY), BOUND).result()
            worker = ms.Sender("honest", joined.incarnation)
            spec, optimizer = TensorSpec.of("honest", LARGE), GradientDescent(1.0)
            declared = ms.Register(sender=worker, declarations=(ms.Declaration(spec, LARGE, optimizer),))
            (before,) = transport.call(0, declared, BOUND).result().values
            gradient = ms.Gradient("honest", before.version, LARGE)
            pushed = transport.call(
                0, ms.Push(sender=worker, sequence=1, gradients=(gradient,), pull=("honest",)), BOUND
            ).result()
            assert (pushed.values[0].array == before.array - 1).all()
            assert transport.tensor_transport(0) == "shared memory"


@pytest.fixture
def target(process):
    """Trains after the attack, which leaves no mapping and no descriptor; connections of clients are closed first."""
    target = Target(process)
    target.train()
    target.wait_until(lambda: not target.mapped())
    before = target.descriptors()
    yield target
    target.train()
    target.wait_until(lambda: not target.mapped() and target.descriptors() <= before)


@pytest.fixture
def client(target):
    client = Client(target.address)
    yield client
    client.channel.close()


@pytest.fixture
def sender(client):
    return client.join("attacker")


@pytest.fixture
def stream(client, sender):
    with closing(Stream(client)) as stream:
        yield stream


def connect(reply):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(BOUND)
    connection.connect(socket_path(reply.socket))
    return connection


def test_only_a_live_member_gets_memory(client, sender):
    token, gone = client.token(sender), client.join("gone")
    with closing(Stream(client, client.token(gone))) as stream:
        assert stream.attach(0, MB).token
        client.unary(ms.Leave(gone))
        with pytest.raises(errors.NotJoined, match="has left"):
            stream.attach(1, MB)
    invented = bytes([token[0] ^ 1]) + token[1:]
    refused = {b"": errors.Unauthenticated, invented: errors.Unauthenticated, client.token(gone): errors.NotJoined}
    for bad, error in refused.items():
        with closing(Stream(client, bad)) as stream, pytest.raises(error):
            stream.attach(0, MB)
    with closing(Stream(client, token)) as stream:
        assert stream.attach(0, MB).token


def punch(descriptor, nbytes):
    """Takes all pages away from a file; the error."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.fallocate(descriptor, PUNCH_HOLE | KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(nbytes))
    return ctypes.get_errno() if failed else 0


def test_memory_that_was_mapped_can_not_be_taken_away_and_gradients_there_are_applied(client, sender, stream):
    """A truncated file ended the server by SIGBUS."""
    client.register(sender, w=np.zeros_like(LARGE))
    reply = stream.attach(0, 2 * MB)
    with closing(connect(reply)) as connection, ExitStack() as stack:
        connection.sendall(reply.token)
        _, (descriptor,), _, _ = socket.recv_fds(connection, 1, 1)
        stack.callback(os.close, descriptor)
        for size in (0, 1, 4 * MB):
            with pytest.raises(PermissionError):
                os.truncate(descriptor, size)
        memory = allocate_and_map(descriptor, 2 * MB)
        connection.sendall(DONE)
        assert connection.recv(100) == DONE
        with pytest.raises(PermissionError):
            os.truncate(descriptor, 0)
        with pytest.raises(PermissionError):
            os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_TRUNC)
        assert punch(descriptor, 2 * MB) == errno.EPERM
    push = ms.Push(sender=sender, sequence=1, gradients=(ms.Gradient("w", 0, LARGE),), pull=("w",))
    frame = to_frame(push, Region(0, memory))
    frame.answer_region.offset, frame.answer_region.nbytes = MB, MB
    stream.memories[0] = memory
    stream.send(frame)
    assert (stream.answer().values[0].array == -1).all()


def test_memory_without_pages_is_not_used(client, sender, stream, target):
    """The server would have to allocate it, in its own control group."""
    for hole in (False, True):
        reply = stream.attach(0, 4 * MB)
        with closing(connect(reply)) as connection:
            connection.sendall(reply.token)
            _, (descriptor,), _, _ = socket.recv_fds(connection, 1, 1)
            if hole:
                os.posix_fallocate(descriptor, 0, 4 * MB)
                assert punch(descriptor, PAGE) == 0, "not sealed yet"
            connection.sendall(DONE)
            allocated = 4 * MB - PAGE if hole else 0
            assert connection.recv(100).decode() == f"the worker has allocated {allocated:,} of {4 * MB:,} bytes"
            os.close(descriptor)
    target.wait_until(lambda: not target.mapped())


@pytest.mark.slow
def test_sixty_four_segments_of_each_stream_that_a_member_may_have_exhaust_no_descriptors(client, sender, target):
    """They took 1,005 of 1,024, and then Register answered "internal error"."""
    with ExitStack() as stack:
        before, refused, count = target.descriptors(), 0, STREAMS_OF_A_MEMBER - 1  # one is for the register
        streams = [stack.enter_context(closing(Stream(client))) for _ in range(count)]
        for stream in streams:
            for number in range(64):
                reply = stream.attach(number, PAGE)
                if reply.socket:
                    fetch_segment(reply, number, PAGE)
                refused += bool(reply.reason)
        target.wait_until(lambda: target.descriptors() <= before + THREADS)
        assert target.mapped() == count * MAX_SEGMENTS
        assert refused == count * (64 - MAX_SEGMENTS)
        client.register(sender, v=LARGE)
        target.train()


@pytest.mark.parametrize("nbytes", [1 << 40, (1 << 63) - 1, 0, -1, -(1 << 63)])
def test_a_segment_of_any_size_that_is_announced_costs_nothing(nbytes, sender, stream, target):
    reply = stream.attach(0, nbytes)
    assert re.match("a segment of .* bytes", reply.reason)
    assert not reply.socket
    assert target.mapped() == 0


def test_bytes_of_a_member_are_bounded_over_all_of_its_streams(client, sender):
    with ServerThread(ServerConfig(shared_memory_limit=8 * MB)) as server, ExitStack() as stack:
        client = Client(server.address)
        stack.callback(client.channel.close)
        sender, other = client.join("attacker"), client.join("other")
        taken = []
        for _ in range(16):
            stream = stack.enter_context(closing(Stream(client, client.token(sender))))
            reply = stream.attach(0, MB)
            taken.append(bool(reply.socket) and fetch_segment(reply, 0, MB).nbytes)
        assert taken == 4 * [MB] + 12 * [False]
        stream = stack.enter_context(closing(Stream(client, client.token(other))))
        assert fetch_segment(stream.attach(0, 4 * MB), 0, 4 * MB).nbytes == 4 * MB


def test_a_file_that_a_worker_names_as_before_is_not_opened(client, sender, stream, tmp_path, target):
    """The fields that once named it are unknown: another user's file, a link, a device, an unsealed file."""
    unsealed = os.memfd_create("unsealed")
    os.truncate(unsealed, MB)
    before = target.descriptors()
    for name in (
        b"../../etc/shadow",
        b"/dev/zero",
        f"/proc/{os.getpid()}/fd/{unsealed}".encode(),
        b"paramserver-" + b"0" * 32,
    ):
        request = pb.AttachRequest(segment=0, nbytes=MB)
        named = request.SerializeToString() + b"\x12" + bytes([len(name)]) + name
        stream.send(pb.Frame(attach=pb.AttachRequest.FromString(named)))
        assert stream.frame().header.attached.socket
        assert (target.mapped(), target.descriptors()) == (0, before)
    os.close(unsealed)


@pytest.mark.slow
def test_descriptors_that_are_sent_to_a_server_are_not_kept_and_do_not_stop_it(client, sender, stream, target):
    """Also of a connection that lingers: whoever closes it last waits a second. Linux 6.16 does not let them pass."""
    with ExitStack() as stack:
        reply, before = stream.attach(0, MB), target.descriptors()
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for _ in range(THREADS):
            connection = stack.enter_context(closing(connect(reply)))
            peer = socket.create_connection(server.getsockname())
            held, _ = server.accept()
            stack.enter_context(held)  # never read: what is sent stays unsent
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))
            peer.setblocking(False)
            with suppress(BlockingIOError):
                while peer.send(bytes(MB)):
                    pass
            try:
                with open("/dev/zero", "rb") as zero:
                    socket.send_fds(connection, [16 * b"x"], [peer.fileno(), zero.fileno()])
            except PermissionError:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            peer.close()
        assert client.status().shards == 1, "the event loop goes on"
    target.wait_until(lambda: target.descriptors() <= before)


@pytest.mark.slow
def test_a_member_that_leaves_its_memory_half_attached_or_replaces_it_for_ever_leaves_nothing(sender, stream, target):
    for size in (1, 4, 2, 3):
        fetch_segment(stream.attach(0, size * MB), 0, size * MB)
        stream.attach(1, MB)
    target.wait_until(lambda: target.mapped() == 1)
    reply = stream.attach(1, MB)
    connection = connect(reply)
    connection.sendall(reply.token)
    _, (descriptor,), _, _ = socket.recv_fds(connection, 1, 1)
    os.close(descriptor)
    connection.close()
    with pytest.raises(NotShared, match="no stream waits"):
        fetch_segment(reply, 1, MB)


@pytest.mark.slow
def test_a_server_answers_others_while_it_maps_memory(monkeypatch):
    """Mapping 1 GB stopped the event loop for 0.6 s."""
    mapping, go_on, seal = threading.Event(), threading.Event(), shared_segments.seal_mapped

    def slow(*arguments):
        mapping.set()
        assert go_on.wait(BOUND)
        seal(*arguments)

    monkeypatch.setattr(shared_segments, "seal_mapped", slow)
    with ServerThread(ServerConfig()) as server, ThreadPoolExecutor(1) as threads:
        client = Client(server.address)
        client.join("w0")
        with closing(client.channel), closing(Stream(client)) as stream:
            reply = stream.attach(0, MB)
            fetched = threads.submit(fetch_segment, reply, 0, MB)
            assert mapping.wait(BOUND)
            assert client.status().shards == 1
            go_on.set()
            assert fetched.result().nbytes == MB
