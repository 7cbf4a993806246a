"""Workers that are killed (kill -9) amidst a push: nothing is half applied, and nothing is left.

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


class Job:
    """A `psserver serve` and two workers of it: `killed` by `kill_worker`, and this one. Variables begin with zeros."""

    def __init__(self, commands, folder, *arguments):
        memory = "--memory-limit", str(MEMORY_LIMIT), "--no-keep-memory"
        self.commands, self.folder = commands, folder
        self.command = commands.python("-c", SERVER, folder, "serve", *memory, *arguments)
        self.command.wait_for("listening on")
        self.transport = GrpcTransport([self.command.address], shared_memory=False)

    def join(self):
        self.sender = Sender("other", self.ask(Join("other")).incarnation)
        zeros = np.zeros(SHAPE, np.float32)
        declared = [Declaration(TensorSpec.of(name, zeros), zeros, Momentum(1.0)) for name in NAMES]
        self.ask(Register(self.sender, tuple(declared)))

    def ask(self, message):
        return self.transport.call(0, message, BOUND).result()

    def kill_worker(self, *does):
        """Kills a worker when it has done this and is ready; the segments that the server has mapped then."""
        worker = self.commands.python("-c", "".join([WORKER, *does]), self.folder, self.command.address)
        worker.wait_for("ready")
        segments, _ = self.mapped()
        worker.signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
        return segments

    def push(self, number):
        """Pushes gradients that are all this number: a transfer as large as the traffic limit."""
        gradients = [Gradient(name, 0, np.full(SHAPE, number, np.float32)) for name in NAMES]
        return self.ask(Push(self.sender, 1, tuple(gradients), pull=NAMES)).outcome

    def versions(self):
        return [variable.version for variable in self.ask(Status()).variables]

    def values(self):
        """Each variable's version, and its value, which all of its elements have."""
        values = [value.array for value in self.ask(Pull(self.sender, NAMES)).values]
        assert [value.min() for value in values] == [value.max() for value in values]
        return self.versions(), [float(value[0, 0]) for value in values]

    def mapped(self):
        """The number of segments that the server has mapped, and the bytes that it uses, as the system sees it."""
        pid = self.command.popen.pid
        used = re.search(r"RssShmem:\s+([0-9]+) kB", Path(f"/proc/{pid}/status").read_text())
        return len(mapped_segments(process=pid)), int(used[1]) << 10

    def wait_until_nothing_is_mapped(self):
        end = time.monotonic() + BOUND
        while self.mapped() != (0, 0):
            assert time.monotonic() < end
            self.ask(Status())  # so that the server has something to do


@pytest.fixture
def start(commands, monkeypatch):
    """A function that starts a job with arguments of the server. At the end nothing may be left in shared memory."""
    with shared_folder(monkeypatch) as folder:
        jobs = []

        def start(*arguments):
            jobs.append(Job(commands, folder, *arguments))
            jobs[-1].join()
            return jobs[-1]

        yield start
        for job in jobs:
            job.transport.close()
            job.command.end(signal.SIGKILL)


@pytest.mark.parametrize(("does", "segments"), [(IN_FRAMES, 0), (BEFORE_THE_FRAME, 1)], ids=["grpc", "shared memory"])
def test_of_a_worker_that_is_killed_amidst_a_push_nothing_is_applied(does, segments, start):
    job = start("--lease", "60")
    assert job.kill_worker(does) == segments
    job.wait_until_nothing_is_mapped()
    assert job.values() == ([0, 0], [0, 0])
    assert job.push(2) is Outcome.APPLIED
    assert job.values() == ([1, 1], [-2, -2])


def test_a_push_whose_frame_has_come_is_applied_as_a_whole_though_its_worker_is_killed(start):
    job = start("--lease", "60")
    job.kill_worker(WITH_THE_FRAME, 'print("ready", flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n')
    job.wait_until_nothing_is_mapped()
    (applied, _), _ = values = job.values()
    assert applied in (0, 1)
    assert values == ([applied] * 2, [-applied] * 2)
    assert job.push(2) is Outcome.APPLIED
    assert job.versions() == [applied + 1] * 2


OF_TWO = ["--consistency", "sync:2", "--memory-limit", str(2 * MEMORY_LIMIT)]


def test_a_push_that_is_held_counts_also_when_its_worker_is_killed_before_the_others_come(start):
    job = start("--lease", "60", *OF_TWO)
    assert job.kill_worker(WITH_THE_FRAME, "wait_to_be_killed()\n") == 1
    assert os.listdir(job.folder) == []
    assert job.push(2) is Outcome.APPLIED
    assert job.values() == ([1, 1], [-1.5, -1.5])
    job.wait_until_nothing_is_mapped()


def test_a_push_that_is_held_is_dropped_when_the_lease_of_its_killed_worker_ends(start):
    job = start("--lease", "2", *OF_TWO)
    assert job.kill_worker(WITH_THE_FRAME, "wait_to_be_killed()\n") == 1
    job.wait_until_nothing_is_mapped()
    assert job.versions() == [0, 0]
    workers = {worker.name: worker for worker in job.ask(Status()).workers}
    assert (workers["killed"].state, workers["killed"].waiting_for) == ("lost", "")
