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
from tests.commands import BOUND
from tests.shared_folder import mapped_segments, shared_folder

pytestmark = pytest.mark.slow

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

#: A worker that is stopped amidst a push of ones: "half", when half of the frames are sent; "before the frame", with
#: one tensor in shared memory; "frame", when the frame is sent and all tensors are there; "dies", which then ends.
WORKER = """
import os, signal, sys, threading
import numpy as np
from pswire.messages import Gradient, Join, Push, Sender, Status
from pswire.tensors import segments
from pswire.tensors.shared_memory import Region
from pswire.tensors.stream import StreamSender
from psworker.transport.grpc_transport import GrpcTransport

segments.FOLDER, address, when = sys.argv[1:]
transport = GrpcTransport([address], shared_memory=when != "half")
frames, put, sent, tensors = StreamSender.frames, Region.put, threading.Event(), []

def ask(message):
    return transport.call(0, message, 30).result()

def ready():
    if when == "dies":
        print("ready", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    ask(Status())  # on the same connection: what was sent before has arrived
    print("ready", flush=True)
    signal.pause()

def put_one(*arguments):
    tensors.append(arguments)
    if when == "before the frame" and len(tensors) == 2:
        ready()
    put(*arguments)

def frames_but_the_last(*arguments):
    every = list(frames(*arguments))
    yield from every[: (len(every) + 1) // 2]
    sent.set()
    threading.Event().wait()

sender = Sender("killed", ask(Join("killed")).incarnation)
Region.put, StreamSender.frames = put_one, frames_but_the_last
ones = np.ones((1 << 10, 1 << 10), np.float32)
call = transport.call(0, Push(sender, 1, (Gradient("v", 0, ones), Gradient("w", 0, ones)), pull=("v", "w")), 30)
sent.wait()
ready()
"""


class Job:
    """A `psserver serve` and two workers: `killed`, by `kill_worker`, and this one. The variables begin with zeros."""

    def __init__(self, commands, folder, *arguments):
        memory = "--memory-limit", str(MEMORY_LIMIT), "--no-keep-memory"
        self.commands, self.folder = commands, folder
        self.command = commands.python("-c", SERVER, folder, "serve", *memory, *arguments)
        self.command.wait_for("listening on")
        self.transport = GrpcTransport([self.command.address], shared_memory=False)

    def ask(self, message):
        return self.transport.call(0, message, BOUND).result()

    def join(self):
        self.sender = Sender("other", self.ask(Join("other")).incarnation)
        zeros = np.zeros(SHAPE, np.float32)
        declared = [Declaration(TensorSpec.of(name, zeros), zeros, Momentum(1.0)) for name in NAMES]
        self.ask(Register(self.sender, tuple(declared)))

    def kill_worker(self, when):
        """Returns the number of segments that the server has mapped before it."""
        worker = self.commands.python("-c", WORKER, self.folder, self.command.address, when)
        worker.wait_for("ready")
        segments, _ = self.mapped()
        assert worker.end(signal.SIGKILL)[0] == -signal.SIGKILL
        return segments

    def push(self, number):
        """Pushes gradients that are all this number: a transfer as large as the traffic limit."""
        gradients = [Gradient(name, 0, np.full(SHAPE, number, np.float32)) for name in NAMES]
        assert self.ask(Push(self.sender, 1, tuple(gradients), pull=NAMES)).outcome is Outcome.APPLIED

    def versions(self):
        return [variable.version for variable in self.ask(Status()).variables]

    def values(self):
        """The versions, and the value that all elements of each variable have."""
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


@pytest.mark.parametrize(
    ("when", "segments", "applied"), [("half", [0], [0]), ("before the frame", [1], [0]), ("dies", range(9), [0, 1])]
)
def test_of_a_worker_that_is_killed_amidst_a_push_all_is_applied_or_nothing(when, segments, applied, start):
    job = start("--lease", "60")
    assert job.kill_worker(when) in segments
    job.wait_until_nothing_is_mapped()
    (updates, *_), _ = before = job.values()
    assert updates in applied
    assert before == ([updates] * 2, [-updates] * 2)
    job.push(2)
    assert job.versions() == [updates + 1] * 2
    assert updates or job.values()[1] == [-2, -2]


OF_TWO = ["--consistency", "sync:2", "--memory-limit", str(2 * MEMORY_LIMIT)]


def test_a_push_that_is_held_counts_also_when_its_worker_is_killed_before_the_others_come(start):
    job = start("--lease", "60", *OF_TWO)
    assert job.kill_worker("frame") > 0
    assert os.listdir(job.folder) == []
    job.push(2)
    assert job.values() == ([1, 1], [-1.5, -1.5])
    job.wait_until_nothing_is_mapped()


def test_a_push_that_is_held_is_dropped_when_the_lease_of_its_killed_worker_ends(start):
    job = start("--lease", "2", *OF_TWO)
    assert job.kill_worker("frame") > 0
    job.wait_until_nothing_is_mapped()
    assert job.versions() == [0, 0]
    workers = {worker.name: worker for worker in job.ask(Status()).workers}
    assert (workers["killed"].state, workers["killed"].waiting_for) == ("lost", "")
