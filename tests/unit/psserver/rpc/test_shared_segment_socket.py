"""The socket for segments: who gets memory, which limits hold, and what is left of servers and workers that end."""

import asyncio
import errno
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from psserver.rpc import shared_segment_socket, transfer_memory
from psserver.rpc.shared_segment_socket import SegmentSocket
from psserver.rpc.transfer_memory import AttachedSegments, SharedMemory
from psserver.rpc.unix_sockets import sweep
from pswire.tensors import shared_segments
from pswire.tensors.shared_segments import DONE, NotShared
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport import shared_memory
from psworker.transport.shared_memory import fetch_segment
from tests.support.commands import BOUND
from tests.support.files import mapped_segments, shared_folder

MB = 1 << 20


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


@pytest.fixture
def server(folder):
    with closing(SegmentSocket()) as server:
        yield server
    assert [thread for thread in threading.enumerate() if thread.name == "psserver-segments"] == []


@pytest.fixture
def memories():
    return {}


def fetch(server, token, nbytes, number=0):
    return fetch_segment(pb.AttachReply(socket=server.name, token=token), number, nbytes)


def connect(server):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(30)
    connection.connect(shared_segments.socket_path(server.name))
    return connection


def test_a_worker_with_a_token_gets_memory_that_both_have_mapped_once(server, memories):
    descriptors = len(os.listdir("/proc/self/fd"))
    token = server.offer(MB, 3, memories)
    segment = fetch(server, token, MB, 3)
    segment.memory[-1] = 9
    assert (segment.number, segment.nbytes, list(memories), memories[3][-1]) == (3, MB, [3], 9)
    for other in (token, bytes(16), b""):
        with pytest.raises(NotShared, match=r"no stream waits for memory with this token|closed its socket"):
            fetch(server, other or b"x", MB)
    assert server.withdraw(token) is False
    end = time.monotonic() + BOUND
    while len(os.listdir("/proc/self/fd")) > descriptors:  # until the server's threads have closed theirs
        assert time.monotonic() < end


def test_a_token_that_is_being_used_or_was_withdrawn_gets_nothing(server, memories):
    token = server.offer(MB, 0, memories)
    with closing(connect(server)) as first:
        first.sendall(token)
        data, (descriptor,), _, _ = socket.recv_fds(first, 1, 1)
        with pytest.raises(NotShared, match="no stream waits"):
            fetch(server, token, MB)
        assert server.withdraw(token)
        os.posix_fallocate(descriptor, 0, MB)
        os.close(descriptor)
        first.sendall(DONE)
        assert (data, first.recv(100)) == (DONE, b"the stream went on without it")
    assert memories == {}


def test_a_worker_that_says_nothing_goes_or_does_not_allocate_gets_nothing_and_others_are_served(
    server, memories, monkeypatch
):
    monkeypatch.setattr(shared_segment_socket, "TOKEN_TIMEOUT", 0.01)
    monkeypatch.setattr(shared_segment_socket, "HANDOVER_TIMEOUT", 0.05)
    silent = [connect(server) for _ in range(2 * shared_segment_socket.THREADS)]
    tokens = [server.offer(MB, number, memories) for number in range(4)]
    stuck, gone, lazy = [connect(server) for _ in range(3)]
    for connection, token in zip((stuck, gone, lazy), tokens, strict=False):
        connection.sendall(token)
    gone.close()
    _, descriptors, _, _ = socket.recv_fds(lazy, 1, 1)
    lazy.sendall(DONE)
    assert lazy.recv(100) == f"the worker has allocated 0 of {MB:,} bytes".encode()
    assert fetch(server, tokens[3], MB).nbytes == MB
    assert list(memories) == [3]
    _, others, _, _ = socket.recv_fds(stuck, 1, 1)
    assert stuck.recv(100) == b"", "the server has closed it"
    for connection in (*silent, stuck, lazy):
        connection.close()
    for descriptor in (*descriptors, *others):
        os.close(descriptor)


def test_a_worker_is_told_why_there_is_no_memory(server, memories, monkeypatch, folder):
    for reply, reason in (
        (pb.AttachReply(reason="no"), "no"),
        (pb.AttachReply(), "the server gives no reason"),
        (pb.AttachReply(socket="../docker.sock"), "is not the name of a socket"),
        (pb.AttachReply(socket="paramserver-" + 32 * "0"), "on another host or in another container"),
    ):
        with pytest.raises(NotShared, match=re.escape(reason)):
            fetch_segment(reply, 0, MB)
    with pytest.raises(NotShared, match="another file than announced"):
        fetch(server, server.offer(2 * MB, 0, memories), MB)
    with monkeypatch.context() as patch:
        patch.setattr(shared_segments, "create_file", lambda nbytes: (_ for _ in ()).throw(NotShared("none left")))
        with pytest.raises(NotShared, match="none left"):
            fetch(server, server.offer(MB, 0, memories), MB)
    with monkeypatch.context() as patch:
        patch.setattr(
            socket.socket, "connect", lambda *_: (_ for _ in ()).throw(PermissionError(errno.EACCES, "denied"))
        )
        with pytest.raises(NotShared, match="belongs to another user"):
            fetch(server, server.offer(MB, 0, memories), MB)
    monkeypatch.setattr(shared_memory, "HANDOVER_TIMEOUT", 0.05)
    path = os.path.join(folder, "paramserver-" + 32 * "1")
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(path)
        mute.listen()
        with pytest.raises(NotShared, match="the server's socket for memory: timed out"):
            fetch_segment(pb.AttachReply(socket=os.path.basename(path), token=bytes(16)), 0, MB)
    os.unlink(path)


def test_the_socket_is_for_its_user_only_and_goes_with_the_server(folder):
    with closing(SegmentSocket()) as server:
        assert os.listdir(folder) == [server.name]
        found = os.stat(os.path.join(folder, server.name))
        assert (stat.S_ISSOCK(found.st_mode), stat.S_IMODE(found.st_mode)) == (True, 0o600)
    assert os.listdir(folder) == []


def test_where_there_can_be_no_socket_the_reason_is_kept_for_workers(folder, monkeypatch):
    for make_it_fail, reason in (
        (lambda: monkeypatch.setattr(shared_segments, "FOLDER", f"{folder}/none"), "make a socket in .*: No such file"),
        (lambda: monkeypatch.delattr(os, "memfd_create"), "only Linux"),
    ):
        make_it_fail()
        reply = AttachedSegments(SharedMemory(MB), "w0").attach(pb.AttachRequest(nbytes=1))
        assert re.search(reason, reply.reason)
    reply = AttachedSegments(SharedMemory(None), "w0").attach(pb.AttachRequest(nbytes=1))
    assert reply.reason.endswith("--no-shared-memory")


def test_a_server_removes_sockets_of_killed_ones_and_nothing_else(server, folder, monkeypatch):
    program = f"""
import signal, sys
from pswire.tensors import shared_segments
shared_segments.FOLDER = {folder!r}
from psserver.rpc.shared_segment_socket import SegmentSocket
print(SegmentSocket().name, flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as other:
        try:
            name = other.stdout.readline().strip()
            assert (sweep(), sorted(os.listdir(folder))) == (0, sorted([server.name, name]))
        finally:
            other.kill()
    assert name in os.listdir(folder)
    kept = ["paramserver-" + 32 * "0", "paramserver-notes"]
    for one in kept:
        Path(folder, one).touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: -1)
        assert sweep() == 0, "another user's"
    assert (sweep(), sweep()) == (1, 0)
    assert sorted(os.listdir(folder)) == sorted([server.name, *kept])
    for one in kept:
        os.unlink(os.path.join(folder, one))
    with monkeypatch.context() as patch:
        patch.setattr(shared_segments, "FOLDER", folder + "/none")
        assert sweep() == 0


# --- segments of streams ----------------------------------------------------------------------------------------------


@pytest.fixture
def shared(folder):
    with closing(SharedMemory(8 * MB)) as shared:
        yield shared


def in_loop(steps):
    """Runs a test's steps in an event loop, whose threads unmap memory until it ends."""

    async def run():
        steps()

    asyncio.run(run())


def attach(stream, number, nbytes):
    return stream.attach(pb.AttachRequest(segment=number, nbytes=nbytes))


def test_bytes_and_segments_of_a_worker_and_of_all_are_bounded_and_free_again_when_streams_end(shared, monkeypatch):
    def steps():
        streams = [AttachedSegments(shared, worker) for worker in ("w0", "w1", "w2")]
        other = AttachedSegments(shared, "w0")
        assert attach(streams[0], 0, 4 * MB).socket
        assert "'w0' has 4,194,304 and all workers 4,194,304" in attach(other, 0, 1).reason
        assert attach(streams[1], 0, 3 * MB).socket
        assert attach(streams[2], 0, MB).socket
        assert "raise --shared-memory-limit" in attach(streams[2], 1, 1).reason
        for stream in streams:
            stream.close()
        monkeypatch.setattr(transfer_memory, "MAX_SEGMENTS_IN_ALL", 3)
        a, b = AttachedSegments(shared, "w0"), AttachedSegments(shared, "w1")
        for number in (0, 1):
            token = attach(a, number, 1).token
            shared.socket._offers.pop(token)  # as if the worker had taken it
            a.settle()
        token = attach(b, 0, 1).token
        shared.socket._offers.pop(token)
        assert attach(b, 1, 1).reason == "all workers have 3 segments, which is the most for a server"
        assert attach(a, 1, MB).socket, "in place of one"
        a.close()
        b.close()
        assert not shared._bytes
        assert not shared._count

    in_loop(steps)


def test_a_segment_that_the_worker_does_not_take_before_it_goes_on_is_counted_no_more(shared):
    def steps():
        stream = AttachedSegments(shared, "w0")
        reply = attach(stream, 0, 4 * MB)
        stream.settle()
        stream.settle()
        with pytest.raises(NotShared, match="no stream waits"):
            fetch_segment(reply, 0, 4 * MB)
        assert not shared._bytes
        segment = fetch_segment(attach(stream, 0, 4 * MB), 0, 4 * MB)
        stream.settle()
        assert shared._bytes["w0"] == len(stream.memories[0]) == segment.nbytes
        replaced = attach(stream, 0, MB)
        assert (replaced.reason, stream.memories, shared._bytes["w0"]) == ("", {}, MB)
        stream.close()
        assert not shared._bytes

    in_loop(steps)


def test_an_offer_ends_with_its_stream(shared):
    def steps():
        stream = AttachedSegments(shared, "w0")
        reply = attach(stream, 0, MB)
        stream.close()
        with pytest.raises(NotShared, match="no stream waits"):
            fetch_segment(reply, 0, MB)
        assert not shared._bytes

    in_loop(steps)


def test_memory_of_a_stream_is_unmapped_when_it_ends_but_not_under_a_task_that_uses_it(shared):
    before, arrays = len(mapped_segments()), []

    def steps():
        stream = AttachedSegments(shared, "w0")
        segment = fetch_segment(attach(stream, 0, MB), 0, MB)
        stream.settle()
        arrays.append(np.ndarray((4,), np.float32, stream.memories[0], 64))
        segment.memory[64:68] = 1
        assert len(mapped_segments()) == before + 2
        stream.close()

    in_loop(steps)
    assert len(mapped_segments()) == before + 1
    assert arrays.pop()[0] != 0
    assert len(mapped_segments()) == before
