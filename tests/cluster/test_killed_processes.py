"""Workers and servers that are killed (kill -9) amidst of something: nothing is half applied, and nothing is left.

The processes have a folder of the test's own for shared memory, so its files and mappings are theirs.
"""

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from pswire.messages import Declaration, Gradient, Join, Outcome, Pull, Push, Register, Sender, Status
from pswire.optimizers import Momentum
from pswire.tensors.values import TensorSpec
from psworker.transport.grpc_transport import GrpcTransport
from tests.shared_folder import mapped_segments, needs_shared_memory, shared_folder

pytestmark = [needs_shared_memory, pytest.mark.slow]

BOUND = 30.0  # seconds that no wait comes near to
NAMES = ("v", "w")
SHAPE = (1 << 10, 1 << 10)
MEMORY_LIMIT = 40 << 20  # half of it is for transfers: one push of both and their values, but not a second beside it

SERVER = """
import sys
from pswire.tensors import segments
segments.FOLDER = sys.argv.pop(1)
from psserver.cli.main import main
main()
"""

#: A worker that has joined, and can do the beginning of a push of ones: `header`, with tensors put by `sender`.
WORKER = """
import itertools, os, queue, signal, sys
import numpy as np
from pswire.channel import open_channel
from pswire.codec import decode, encode, to_frame
from pswire.tensors import segments
from pswire.tensors.frames import incoming
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.tensors.shared_memory import Region
from pswire.tensors.stream import StreamSender
from pswire.messages import Gradient, Join, Push, Sender, Status
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub

segments.FOLDER, address = sys.argv[1:]
channel = open_channel(address)
stub = ParameterServerStub(channel)

def ask(message):
    call = getattr(stub, type(message).__name__)
    return decode(call(encode(message, InlineSender())), InlineReceiver())

sender = Sender("killed", ask(Join("killed")).incarnation)
ones = np.ones((1 << 10, 1 << 10), np.float32)
push = Push(sender, 1, (Gradient("v", 0, ones), Gradient("w", 0, ones)), pull=("v", "w"))
frames = queue.Queue()
transfer = channel.stream_stream("/paramserver.v1.ParameterServer/Transfer")
answers = transfer(iter(frames.get, None))

def send(*several):
    for frame in several:
        frames.put(frame)
    while not frames.empty():
        pass

def attach():
    segment = segments.Segment.create(10 << 20)
    offer = pb.AttachRequest(segment=0, name=segment.name, nbytes=segment.nbytes, token=segment.token)
    send(pb.Frame(attach=offer).SerializeToString())
    assert incoming(next(answers)).header.attached.attached
    segment.unlink()
    return segment

def wait_to_be_killed():
    ask(Status())  # on the same connection: what was sent before has arrived
    print("ready", flush=True)
    signal.pause()
"""

IN_FRAMES = """
sender = StreamSender()
header = to_frame(push, sender)
first, *chunks = sender.frames(header)
send(first, *chunks[: len(chunks) // 2])
wait_to_be_killed()
"""

BEFORE_THE_FRAME = """
segment = attach()
sender = Region(0, segment.memory)
sender.put(ones, pb.Tensor(name="v", dtype="float32"))
wait_to_be_killed()
"""

WITH_THE_FRAME = """
segment = attach()
header = to_frame(push, Region(0, segment.memory)).SerializeToString()
send(header)
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


class Server:
    """`psserver serve` in a process of its own, and another worker that reads it; the variables begin with zeros."""

    def __init__(self, command):
        command.wait_for("listening on")
        self.command, self.pid, self.address = command, command.popen.pid, command.address
        self.transport = GrpcTransport([self.address], shared_memory=False)

    def ask(self, message):
        return self.transport.call(0, message, BOUND).result()

    def join(self):
        self.sender = Sender("other", self.ask(Join("other")).incarnation)
        zeros = np.zeros(SHAPE, np.float32)
        declared = [Declaration(TensorSpec.of(name, zeros), zeros, Momentum(1.0)) for name in NAMES]
        self.ask(Register(self.sender, tuple(declared)))

    def push(self, number):
        """The other's push of gradients that are all this number: a transfer as large as the traffic limit."""
        gradient = np.full(SHAPE, number, np.float32)
        return self.ask(Push(self.sender, 1, tuple(Gradient(name, 0, gradient) for name in NAMES), pull=NAMES))

    def values(self):
        """Each variable's value, which all of its elements have."""
        values = [value.array for value in self.ask(Pull(self.sender, NAMES)).values]
        assert [value.min() for value in values] == [value.max() for value in values]
        return [float(value[0, 0]) for value in values]

    def versions(self):
        return [variable.version for variable in self.ask(Status()).variables]

    def mapped(self):
        """How many segments it has mapped, and the bytes of them that it uses, as the system sees it."""
        used = re.search(r"RssShmem:\s+([0-9]+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return len(mapped_segments(process=self.pid)), int(used[1]) << 10

    def wait_until_nothing_is_mapped(self):
        until(lambda: self.mapped() == (0, 0), self.ask)


def until(condition, ask):
    """Returns when it holds; asks the server for its status meanwhile, so that it has something to do."""
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end
        ask(Status())


@pytest.fixture
def serve(commands, folder):
    """A function that starts a server with arguments."""
    servers = []

    def start(*arguments):
        command = commands.python(
            "-c", SERVER, folder, "serve", "--memory-limit", str(MEMORY_LIMIT), "--no-keep-memory", *arguments
        )
        servers.append(Server(command))
        return servers[-1]

    yield start
    for server in servers:
        server.transport.close()
        server.command.popen.kill()
        server.command.wait()


@pytest.fixture
def kill_worker(commands, folder):
    """A function that starts a worker, and kills it when it is ready; the segments that the server has then."""

    def run(server, *does):
        worker = commands.python("-c", "".join([WORKER, *does]), folder, server.address)
        worker.wait_for("ready")
        segments, _ = server.mapped()
        worker.signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
        return segments

    return run


# --- workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("does", "segments"), [(IN_FRAMES, 0), (BEFORE_THE_FRAME, 1)], ids=["grpc", "shared memory"])
def test_of_a_worker_that_is_killed_amidst_a_push_nothing_is_applied_and_nothing_is_left(
    does, segments, serve, kill_worker, folder
):
    server = serve("--lease", "60")
    server.join()
    assert kill_worker(server, does) == segments
    server.wait_until_nothing_is_mapped()
    assert os.listdir(folder) == []
    assert (server.versions(), server.values()) == ([0, 0], [0, 0])
    assert server.push(2).outcome is Outcome.APPLIED
    assert (server.versions(), server.values()) == ([1, 1], [-2, -2])


def test_a_push_whose_frame_has_come_is_applied_as_a_whole_though_its_worker_is_killed(serve, kill_worker, folder):
    server = serve("--lease", "60")
    server.join()
    kill_worker(server, WITH_THE_FRAME, 'print("ready", flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n')
    server.wait_until_nothing_is_mapped()
    assert os.listdir(folder) == []
    applied = server.versions()[0]
    assert applied in (0, 1)
    assert (server.versions(), server.values()) == ([applied] * 2, [-applied] * 2)
    server.push(2)
    assert server.versions() == [applied + 1] * 2


OF_TWO = ["--consistency", "sync:2", "--memory-limit", str(2 * MEMORY_LIMIT)]


def test_a_push_that_is_held_counts_also_when_its_worker_is_killed_before_the_others_come(serve, kill_worker, folder):
    server = serve("--lease", "60", *OF_TWO)
    server.join()
    assert kill_worker(server, WITH_THE_FRAME, "wait_to_be_killed()\n") == 1
    assert os.listdir(folder) == []
    assert server.push(2).outcome is Outcome.APPLIED
    assert (server.versions(), server.values()) == ([1, 1], [-1.5, -1.5])
    server.wait_until_nothing_is_mapped()


def test_a_push_that_is_held_is_dropped_when_the_lease_of_its_killed_worker_ends(serve, kill_worker, folder):
    server = serve("--lease", "1", *OF_TWO)
    server.join()
    assert kill_worker(server, WITH_THE_FRAME, "wait_to_be_killed()\n") == 1
    server.wait_until_nothing_is_mapped()
    assert server.versions() == [0, 0]
    workers = {worker.name: worker for worker in server.ask(Status()).workers}
    assert (workers["killed"].state, workers["killed"].waiting_for) == ("lost", "")


# --- servers ----------------------------------------------------------------------------------------------------------
